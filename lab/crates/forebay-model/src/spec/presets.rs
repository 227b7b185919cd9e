//! Twelve file systems, one TOML file each, with a source per number; docs/cost-model.md tabulates
//! them.

/// Names of the presets; those of the papers and common ones first.
pub(crate) const NAMES: &[&str] = &[
    "fefs",
    "fefs-hdd",
    "lustre-hdd",
    "lustre-ssd",
    "gpfs",
    "blues",
    "bebop",
    "cori",
    "summit",
    "beegfs",
    "nfs",
    "local-nvme",
];

/// The TOML of a preset.
pub(crate) fn text(name: &str) -> Option<&'static str> {
    Some(match name {
        "fefs" => include_str!("presets/fefs.toml"),
        "fefs-hdd" => include_str!("presets/fefs-hdd.toml"),
        "lustre-hdd" => include_str!("presets/lustre-hdd.toml"),
        "lustre-ssd" => include_str!("presets/lustre-ssd.toml"),
        "gpfs" => include_str!("presets/gpfs.toml"),
        "blues" => include_str!("presets/blues.toml"),
        "bebop" => include_str!("presets/bebop.toml"),
        "cori" => include_str!("presets/cori.toml"),
        "summit" => include_str!("presets/summit.toml"),
        "beegfs" => include_str!("presets/beegfs.toml"),
        "nfs" => include_str!("presets/nfs.toml"),
        "local-nvme" => include_str!("presets/local-nvme.toml"),
        _ => return None,
    })
}

//! docs/cost-model.md agrees with the presets and the specification.
use std::fmt::Write as _;
use std::path::PathBuf;

use forebay_model::Spec;

const BEGIN: &str =
    "<!-- presets: written by FOREBAY_WRITE_GOLDEN=1 cargo test -p forebay-model --test all page -->\n";
const END: &str = "<!-- end -->";

fn page() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/cost-model.md"))
}

/// A size in the largest unit that divides it.
fn size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.into_iter().find(|&(unit, _)| bytes > 0 && bytes.is_multiple_of(unit));
    unit.map_or_else(|| bytes.to_string(), |(unit, name)| format!("{} {name}", bytes / unit))
}

fn giga(rate: f64) -> String {
    format!("{}", (rate / 1e6).round() / 1e3)
}

fn milli(us: f64) -> String {
    format!("{}", us / 1e3)
}

fn row(spec: &Spec) -> String {
    let estimated = |field: &str, value: String| {
        // "E" alone, or "E: why".
        if spec.sources.get(field).is_some_and(|source| source.split([':', ',', ' ']).next() == Some("E")) {
            format!("{value} E")
        } else {
            value
        }
    };
    let seek = if spec.seek_us == 0.0 {
        "0".to_owned()
    } else {
        let seek = estimated("seek_us", milli(spec.seek_us));
        format!("{seek}; / {} below {}", spec.data_disks, size(spec.small_request_bytes))
    };
    let cells = [
        format!("`{}`", spec.name),
        format!(
            "{} × {}",
            estimated("targets", spec.targets.to_string()),
            estimated("target_bytes_per_second", giga(spec.target_bytes_per_second))
        ),
        estimated("latency_us", milli(spec.latency_us)),
        seek,
        format!(
            "{} × {}",
            estimated("stripe_bytes", size(spec.stripe_bytes)),
            estimated("stripe_count", spec.stripe_count.to_string())
        ),
        format!(
            "{}, {}",
            estimated("request_bytes", size(spec.request_bytes)),
            estimated("request_depth", spec.request_depth.to_string())
        ),
        format!(
            "{}, {}",
            estimated("read_ahead_bytes", size(spec.read_ahead_bytes)),
            estimated("read_ahead_mmap_bytes", size(spec.read_ahead_mmap_bytes))
        ),
        spec.link_bytes_per_second
            .map_or_else(|| "–".to_owned(), |rate| estimated("link_bytes_per_second", giga(rate))),
        estimated("metadata_us", milli(spec.metadata_us)),
        spec.cache_bytes.map_or_else(|| "–".to_owned(), |bytes| estimated("cache_bytes", size(bytes))),
        format!("{}, {}", giga(spec.limit_bytes_per_second(1)), giga(spec.limit_bytes_per_second(16))),
        format!(
            "{:.0}, {:.0}",
            spec.suggested_time_scale(),
            spec.with_targets(spec.targets.min(3)).suggested_time_scale()
        ),
    ];
    format!("| {} |\n", cells.join(" | "))
}

fn table() -> String {
    let mut table = "| Preset | Targets × GB/s | Latency ms | Seek ms | Stripe × count | Request, depth | Read-ahead: read, \
                     fault | Link GB/s | Metadata ms | Cache of a node | Limit GB/s | *k* |\n"
        .to_owned();
    writeln!(table, "{}|", "|---".repeat(12)).unwrap();
    for name in Spec::preset_names() {
        table.push_str(&row(&Spec::preset(name).unwrap()));
    }
    table
}

#[test]
fn the_page_shows_the_presets_as_they_are() {
    let text = std::fs::read_to_string(page()).unwrap();
    let (head, rest) = text.split_once(BEGIN).expect("the line before the table");
    let (found, tail) = rest.split_once(END).expect("the line after the table");
    if std::env::var_os("FOREBAY_WRITE_GOLDEN").is_some() {
        std::fs::write(page(), format!("{head}{BEGIN}{}{END}{tail}", table())).unwrap();
        return;
    }
    assert_eq!(found, table(), "run FOREBAY_WRITE_GOLDEN=1 cargo test -p forebay-model --test all page");
}

#[test]
fn the_page_explains_every_field_and_no_other() {
    let text = std::fs::read_to_string(page()).unwrap();
    let section = text.split("\n## ").find(|section| section.starts_with("Parameters\n")).unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let explained: Vec<_> = rows.map(|(field, _)| field.to_owned()).collect();
    let serde_json::Value::Object(fields) = serde_json::to_value(Spec::free()).unwrap() else {
        panic!("a specification is an object")
    };
    let mut known: Vec<_> = fields.keys().cloned().collect();
    let mut sorted = explained.clone();
    known.sort_unstable();
    sorted.sort_unstable();
    assert_eq!(sorted, known);
}

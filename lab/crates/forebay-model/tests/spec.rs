//! Specifications: presets, files, overrides and validation.
use forebay_model::{Error, Model, Spec};

const OWN: &str = r#"
name = "own"
targets = 4
target_bytes_per_second = 1e9
latency_us = 500.0
stripe_bytes = 1_048_576
stripe_count = 2
request_bytes = 1_048_576
request_depth = 8
metadata_us = 1000.0
"#;

#[test]
fn every_preset_reads_checks_and_is_called_like_its_file() {
    assert_eq!(Spec::preset_names().len(), 12);
    for &name in Spec::preset_names() {
        let spec = Spec::preset(name).unwrap();
        assert_eq!(spec.name, name);
        assert!(!spec.about.is_empty());
        Model::new(spec, 0).unwrap();
    }
}

#[test]
fn every_number_of_every_preset_has_a_source() {
    for &name in Spec::preset_names() {
        let spec = Spec::preset(name).unwrap();
        let text =
            std::fs::read_to_string(format!("{}/src/spec/presets/{name}.toml", env!("CARGO_MANIFEST_DIR")))
                .unwrap();
        let table: toml::Table = toml::from_str(&text).unwrap();
        let numbers: Vec<_> =
            table.iter().filter(|(_, value)| !value.is_str() && !value.is_table()).collect();
        assert!(numbers.len() >= 11);
        for (field, _) in numbers {
            assert!(spec.sources.get(field).is_some_and(|source| !source.is_empty()), "{name}: {field}");
        }
    }
}

#[test]
fn a_specification_survives_json() {
    for &name in Spec::preset_names().iter().chain(&["none"]) {
        let spec = Spec::preset(name).unwrap();
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<Spec>(&json).unwrap(), spec);
    }
}

#[test]
fn an_own_file_needs_only_what_has_no_neutral_value() {
    let spec = Spec::from_toml(OWN, "own.toml").unwrap();
    assert_eq!(spec.read_ahead_bytes, 128 * 1024);
    assert_eq!((spec.link_bytes_per_second, spec.cache_bytes), (None, None));
    assert_eq!((spec.seek_us, spec.jitter, spec.data_disks), (0.0, 0.0, 1));
    assert_eq!((spec.request_us, spec.lock_us, spec.stream_bytes_per_second), (0.0, 0.0, None));
}

#[test]
fn a_bad_file_is_refused_with_its_path_the_field_and_what_was_expected() {
    let refused = |text: &str| Spec::from_toml(text, "dir/own.toml").unwrap_err().to_string();
    let unknown = refused(&format!("{OWN}\nbandwidth = 3\n"));
    assert!(unknown.contains("dir/own.toml") && unknown.contains("bandwidth"), "{unknown}");
    let absent = refused(&OWN.replace("latency_us = 500.0", ""));
    assert!(absent.contains("latency_us"), "{absent}");
    for (good, bad, field) in [
        ("targets = 4", "targets = 0", "targets"),
        ("stripe_count = 2", "stripe_count = 5", "stripe_count"),
        ("latency_us = 500.0", "latency_us = nan", "latency_us"),
        ("latency_us = 500.0", "latency_us = -1.0", "latency_us"),
        ("= 1e9", "= 0.0", "target_bytes_per_second"),
        ("= 1e9", "= inf", "target_bytes_per_second"),
        ("stripe_bytes = 1_048_576", "stripe_bytes = 5000", "stripe_bytes"),
        ("request_bytes = 1_048_576", "request_bytes = 0", "request_bytes"),
        ("request_depth = 8", "request_depth = 0", "request_depth"),
        ("metadata_us = 1000.0", "metadata_us = 1000.0\njitter = -0.1", "jitter"),
        ("metadata_us = 1000.0", "metadata_us = 1000.0\ndata_disks = 0", "data_disks"),
        ("metadata_us = 1000.0", "metadata_us = 1.0\nlink_bytes_per_second = 0.0", "link_bytes_per_second"),
        ("metadata_us = 1000.0", "metadata_us = 1000.0\n[sources]\nspeed = \"E\"", "sources.speed"),
    ] {
        let error = Spec::from_toml(&OWN.replace(good, bad), "own.toml").unwrap_err();
        assert!(matches!(&error, Error::Field { field: found, .. } if found == field), "{bad}: {error}");
    }
}

#[test]
fn an_unknown_preset_names_those_there_are() {
    let error = Spec::preset("lustre").unwrap_err();
    assert!(matches!(error, Error::UnknownPreset { known, .. } if known.contains(&"lustre-hdd")));
}

#[test]
fn overrides_change_fields_drop_their_source_and_are_checked() {
    let spec = Spec::preset("fefs").unwrap();
    let changed = spec.overridden(r#"{"latency_us": 200, "link_bytes_per_second": null}"#).unwrap();
    assert_eq!((changed.latency_us, changed.link_bytes_per_second), (200.0, None));
    assert!(!changed.sources.contains_key("latency_us") && changed.sources.contains_key("targets"));
    assert_eq!(spec.overridden("{}").unwrap(), spec);
    assert!(spec.overridden(r#"{"latency": 1}"#).unwrap_err().to_string().contains("latency"));
    let narrowed = spec.overridden(r#"{"targets": 2}"#);
    assert!(
        matches!(narrowed, Err(Error::Field { field, found, .. }) if field == "stripe_count" && found == "12")
    );
    assert!(spec.overridden("[]").is_err());
}

#[test]
fn narrowing_keeps_a_file_on_the_targets_there_are() {
    let narrow = Spec::preset("fefs").unwrap().with_targets(3);
    assert_eq!((narrow.targets, narrow.stripe_count), (3, 3));
    narrow.check().unwrap();
    let narrow = Spec::preset("cori").unwrap().with_targets(3);
    assert_eq!((narrow.targets, narrow.stripe_count), (3, 1));
}

#[test]
fn the_suggested_time_scale_carries_rate_and_latency() {
    let suggested =
        |name: &str, targets| Spec::preset(name).unwrap().with_targets(targets).suggested_time_scale();
    // 3 x 2.4 GB/s / 0.4 GB/s; 60 GB/s / 0.4 GB/s; 0.5 ms / 0.3 ms would be less.
    assert!((suggested("fefs", 3) - 18.0).abs() < 1e-9);
    assert!((suggested("lustre-hdd", 16) - 150.0).abs() < 1e-9);
    assert!((Spec::free().suggested_time_scale() - 1.0).abs() < 1e-12);
    let far = Spec::from_toml(&OWN.replace("= 1e9", "= 1e6"), "").unwrap();
    assert!((far.suggested_time_scale() - 1.0).abs() < 1e-12);
    let near = far.overridden(r#"{"latency_us": 100.0}"#).unwrap();
    assert!((near.suggested_time_scale() - 5.0).abs() < 1e-9);
}

#[test]
fn the_limit_is_the_narrowest_of_disks_links_streams_and_requests_in_flight() {
    let spec = Spec::from_toml(OWN, "").unwrap();
    // Two stripes on 1 GB/s each; in flight: 2 x 8 MiB in 0.5 + 1.048576 ms = 10.8 GB/s.
    assert!((spec.limit_bytes_per_second(4) / 2e9 - 1.0).abs() < 1e-12);
    let linked = spec.overridden(r#"{"link_bytes_per_second": 0.5e9}"#).unwrap();
    assert!((linked.limit_bytes_per_second(3) / 1.5e9 - 1.0).abs() < 1e-12);
    let streamed = spec.overridden(r#"{"stream_bytes_per_second": 0.3e9}"#).unwrap();
    assert!((streamed.limit_bytes_per_second(3) / 0.9e9 - 1.0).abs() < 1e-12);
    let working = spec.overridden(r#"{"request_us": 1048.576}"#).unwrap();
    assert!((working.limit_bytes_per_second(4) / 1e9 - 1.0).abs() < 1e-12);
    let shallow = spec.overridden(r#"{"request_depth": 1}"#).unwrap();
    let in_flight = 2.0 * 1_048_576.0 / (0.000_5 + 0.001_048_576);
    assert!((shallow.limit_bytes_per_second(1) / in_flight - 1.0).abs() < 1e-12);
    assert!(Spec::free().limit_bytes_per_second(1).is_infinite());
}

#[test]
fn random_reads_of_disks_reach_the_limit_only_when_they_are_large() {
    let spec = Spec::preset("lustre-hdd").unwrap();
    let percent = |mib: u64| {
        let share = spec.limit_of_random_reads(16, mib << 20) / spec.limit_bytes_per_second(16);
        (100.0 * share).round() as u32
    };
    // As in docs/cost-model.md.
    assert_eq!([4, 16, 64, 256].map(percent), [12, 36, 69, 90]);
    let flash = Spec::preset("lustre-ssd").unwrap();
    assert!((flash.limit_of_random_reads(4, 1 << 20) - flash.limit_bytes_per_second(4)).abs() < 1.0);
    assert!(Spec::free().limit_of_random_reads(1, 4096).is_infinite());
    // Reads of one stripe, each of one request that is as much work as its bytes.
    let working = Spec::from_toml(OWN, "").unwrap().overridden(r#"{"request_us": 1048.576}"#).unwrap();
    assert!((working.limit_of_random_reads(4, 1 << 20) / 1e9 - 1.0).abs() < 1e-12);
}

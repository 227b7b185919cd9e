//! What was counted, as JSON and as Prometheus text. Times are model seconds; the meaning of every key is in docs/metrics.md.
use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::counters::Tally;
use crate::emulator::shared::{Shared, locked};
use crate::model::ServerId;

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// CPU time of this process so far \[s\].
pub(crate) fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn tally(tally: &Tally) -> Map<String, Value> {
    let fields = json!({
        "reads": tally.reads,
        "read_bytes": tally.read_bytes,
        "writes": tally.writes,
        "written_bytes": tally.written_bytes,
        "sequential_reads": tally.sequential_reads,
        "queue_seconds": seconds(tally.queue_ns),
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn with(mut fields: Map<String, Value>, more: Value) -> Value {
    if let Value::Object(more) = more {
        fields.extend(more);
    }
    Value::Object(fields)
}

/// Everything.
pub(crate) fn json(shared: &Shared, cpu_seconds: f64) -> Value {
    let mounts = shared.mounts();
    let lateness = shared.timers.lateness();
    let state = locked(&shared.state);
    let counters = state.counters.clone();
    let faults = state.faults.clone();
    drop(state);
    let now = shared.now();

    let nodes: Vec<Value> = mounts
        .iter()
        .map(|mount| {
            let found = counters.node(mount.node);
            let sizes: Map<String, Value> =
                found.sizes.iter().map(|(size, count)| (size.to_string(), json!(count))).collect();
            let more = json!({
                "node": mount.node.0,
                "mount": mount.path.to_string_lossy(),
                "read_ahead_kb": mount.read_ahead_kb.get(),
                "metadata": found.metadata,
                "sizes": sizes,
                "max_in_flight": mount.in_flight.most(),
                "partitioned": mount.is_dead(),
            });
            with(tally(&found.tally), more)
        })
        .collect();
    let servers: Vec<Value> = (0..shared.spec.targets)
        .map(|number| {
            let found = counters.server(ServerId(number));
            let more = json!({
                "server": number,
                "seeks": found.seeks,
                "busy_seconds": seconds(found.busy_ns),
            });
            with(tally(&found.tally), more)
        })
        .collect();
    let files: Vec<Value> = counters
        .files()
        .map(|(file, found)| {
            let more = json!({"file": shared.name(file), "first": found.first.map(seconds)});
            with(tally(&found.tally), more)
        })
        .collect();

    let model_us = |quantile: u64| quantile as f64 / 1e3 / shared.clock.time_scale();
    let p99_us = model_us(lateness.quantile(0.99));
    json!({
        "model_seconds": seconds(now),
        "time_scale": shared.clock.time_scale(),
        "lateness_us": {
            "p50": model_us(lateness.quantile(0.5)),
            "p99": p99_us,
            "max": model_us(lateness.max()),
        },
        "lateness_exceeds_latency": !shared.spec.is_free() && p99_us > shared.spec.latency_us,
        "way_us": model_us(shared.calibration.way()),
        "max_in_flight": shared.in_flight.most(),
        "nodes": nodes,
        "servers": servers,
        "files": files,
        "faults": {
            "eio": faults.ranges().iter().map(|&(file, from, to)| {
                json!({"file": shared.name(file), "from": from, "to": to})
            }).collect::<Vec<_>>(),
            "stalled": faults.stalled(now).map(|(server, until)| {
                json!({"server": server.0, "for_seconds": seconds(until - now)})
            }).collect::<Vec<_>>(),
            "slow": faults.slowed().map(|(server, factor)| {
                json!({"server": server.0, "factor": factor})
            }).collect::<Vec<_>>(),
            "partition": mounts.iter().filter(|mount| mount.is_dead()).map(|mount| {
                mount.path.to_string_lossy().into_owned()
            }).collect::<Vec<_>>(),
        },
        "cpu_seconds": cpu_seconds,
    })
}

/// One family of metrics: name, kind, what it says, the key that it comes from.
type Family = (&'static str, &'static str, &'static str, &'static str);

const NODE_FAMILIES: [Family; 8] = [
    ("reads_total", "counter", "Read requests.", "reads"),
    ("read_bytes_total", "counter", "Bytes that read requests asked for.", "read_bytes"),
    ("writes_total", "counter", "Write requests.", "writes"),
    ("written_bytes_total", "counter", "Bytes that write requests carried.", "written_bytes"),
    ("sequential_reads_total", "counter", "Reads that begin where the last one ended.", "sequential_reads"),
    ("metadata_total", "counter", "Operations on the metadata server.", "metadata"),
    ("queue_seconds_total", "counter", "Model seconds that pieces waited for servers.", "queue_seconds"),
    ("max_in_flight", "gauge", "Most reads in flight at once.", "max_in_flight"),
];

const SERVER_FAMILIES: [Family; 8] = [
    ("reads_total", "counter", "Pieces of reads.", "reads"),
    ("read_bytes_total", "counter", "Bytes read.", "read_bytes"),
    ("writes_total", "counter", "Pieces of writes.", "writes"),
    ("written_bytes_total", "counter", "Bytes written.", "written_bytes"),
    (
        "sequential_reads_total",
        "counter",
        "Pieces right behind the last one of their object.",
        "sequential_reads",
    ),
    ("seeks_total", "counter", "Pieces that made the server seek.", "seeks"),
    ("busy_seconds_total", "counter", "Model seconds that the server worked.", "busy_seconds"),
    ("queue_seconds_total", "counter", "Model seconds that pieces waited for the server.", "queue_seconds"),
];

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The text format 0.0.4 of Prometheus.
pub(crate) fn prometheus(stats: &Value) -> String {
    let mut out = String::new();
    let none = Vec::new();
    let mut table = |of: &str, rows: &str, families: &[Family], labels: &dyn Fn(&Value) -> String| {
        for (name, kind, help, key) in families {
            let _ = writeln!(out, "# HELP forebay_pfs_{of}_{name} {help}");
            let _ = writeln!(out, "# TYPE forebay_pfs_{of}_{name} {kind}");
            for row in stats[rows].as_array().unwrap_or(&none) {
                let _ = writeln!(out, "forebay_pfs_{of}_{name}{{{}}} {}", labels(row), row[key]);
            }
        }
    };
    table("node", "nodes", &NODE_FAMILIES, &|row| {
        format!("node=\"{}\",mount=\"{}\"", row["node"], escaped(row["mount"].as_str().unwrap_or("")))
    });
    table("server", "servers", &SERVER_FAMILIES, &|row| format!("server=\"{}\"", row["server"]));
    for (name, kind, help, value) in [
        ("model_seconds", "counter", "Model seconds since the start.", &stats["model_seconds"]),
        ("time_scale", "gauge", "Real seconds for each model second.", &stats["time_scale"]),
        ("cpu_seconds_total", "counter", "CPU seconds of the emulator.", &stats["cpu_seconds"]),
    ] {
        let _ = writeln!(out, "# HELP forebay_pfs_{name} {help}");
        let _ = writeln!(out, "# TYPE forebay_pfs_{name} {kind}");
        let _ = writeln!(out, "forebay_pfs_{name} {value}");
    }
    let _ = writeln!(out, "# HELP forebay_pfs_lateness_us How late replies ended, in model microseconds.");
    let _ = writeln!(out, "# TYPE forebay_pfs_lateness_us gauge");
    for quantile in ["p50", "p99", "max"] {
        let value = &stats["lateness_us"][quantile];
        let _ = writeln!(out, "forebay_pfs_lateness_us{{quantile=\"{quantile}\"}} {value}");
    }
    out
}

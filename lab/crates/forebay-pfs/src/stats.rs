//! Reports the counters as JSON and in the text format of Prometheus. Times are model seconds;
//! docs/metrics.md defines the keys.
use std::fmt::Write;

use forebay_model::ServerId;
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::locks::locked;
use crate::mount::MountState;
use crate::records::counters::RequestCounters;

/// Share of the time of requests that may be lateness, at most, in times that are reliable.
const MAX_LATENESS_SHARE: f64 = 0.05;

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// CPU time of this process so far \[s\].
pub(crate) fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn requests(counters: &RequestCounters) -> Map<String, Value> {
    let fields = json!({
        "reads": counters.reads,
        "read_bytes": counters.read_bytes,
        "writes": counters.writes,
        "written_bytes": counters.written_bytes,
        "sequential_reads": counters.sequential_reads,
        "queue_seconds": seconds(counters.queue_ns),
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

/// The counters as JSON.
pub(crate) fn json(context: &Context, cpu_seconds: f64) -> Value {
    let mounts = context.mounts();
    let lateness = context.scheduler.lateness();
    let state = locked(&context.state);
    let counters = state.counters.clone();
    let faults = state.faults.clone();
    drop(state);
    let now = context.clock.model_now();

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
                "max_in_flight": mount.in_flight.max(),
                "partitioned": mount.connection() != MountState::Serving,
            });
            with(requests(&found.requests), more)
        })
        .collect();
    let servers: Vec<Value> = (0..context.spec.targets)
        .map(|number| {
            let found = counters.server(ServerId(number));
            let more = json!({
                "server": number,
                "seeks": found.seeks,
                "busy_seconds": seconds(found.busy_ns),
            });
            with(requests(&found.requests), more)
        })
        .collect();
    let files: Vec<Value> = counters
        .files()
        .map(|(file, found)| {
            let more = json!({"file": context.name(file), "first": found.first_read.map(seconds)});
            with(requests(&found.requests), more)
        })
        .collect();

    let share = lateness.share();
    let model_us = |quantile: u64| quantile as f64 / 1e3 / context.clock.time_scale();
    json!({
        "model_seconds": seconds(now),
        "time_scale": context.clock.time_scale(),
        "lateness_us": {
            "p50": model_us(lateness.each.quantile(0.5)),
            "p99": model_us(lateness.each.quantile(0.99)),
            "max": model_us(lateness.each.max()),
        },
        "lateness_share": share,
        "missed_deadlines": !context.spec.is_free() && share > MAX_LATENESS_SHARE,
        "round_trip_us": model_us(context.round_trip.overhead()),
        "max_in_flight": context.in_flight.max(),
        "nodes": nodes,
        "servers": servers,
        "files": files,
        "faults": {
            "eio": faults.unreadable().iter().map(|&(file, from, to)| {
                json!({"file": context.name(file), "from": from, "to": to})
            }).collect::<Vec<_>>(),
            "stalled": faults.stalled(now).map(|(server, until)| {
                json!({"server": server.0, "for_seconds": seconds(until - now)})
            }).collect::<Vec<_>>(),
            "slow": faults.slowed().map(|(server, factor)| {
                json!({"server": server.0, "factor": factor})
            }).collect::<Vec<_>>(),
            "partition": mounts.iter().filter(|mount| mount.connection() != MountState::Serving).map(|mount| {
                mount.path.to_string_lossy().into_owned()
            }).collect::<Vec<_>>(),
        },
        "cpu_seconds": cpu_seconds,
    })
}

/// One family of metrics: name, type, help text, key in the JSON.
type Family = (&'static str, &'static str, &'static str, &'static str);

const NODE_FAMILIES: [Family; 8] = [
    ("reads_total", "counter", "Read requests.", "reads"),
    ("read_bytes_total", "counter", "Bytes of read requests.", "read_bytes"),
    ("writes_total", "counter", "Write requests.", "writes"),
    ("written_bytes_total", "counter", "Bytes of write requests.", "written_bytes"),
    ("sequential_reads_total", "counter", "Reads that begin where the last one ended.", "sequential_reads"),
    ("metadata_total", "counter", "Metadata operations.", "metadata"),
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
        "Pieces that begin where the last one of their object ended.",
        "sequential_reads",
    ),
    ("seeks_total", "counter", "Pieces that began with a seek.", "seeks"),
    ("busy_seconds_total", "counter", "Model seconds that the server was busy.", "busy_seconds"),
    ("queue_seconds_total", "counter", "Model seconds that pieces waited for the server.", "queue_seconds"),
];

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The counters in the text format 0.0.4 of Prometheus.
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
        ("time_scale", "gauge", "Real seconds per model second.", &stats["time_scale"]),
        ("cpu_seconds_total", "counter", "CPU seconds of the emulator.", &stats["cpu_seconds"]),
    ] {
        let _ = writeln!(out, "# HELP forebay_pfs_{name} {help}");
        let _ = writeln!(out, "# TYPE forebay_pfs_{name} {kind}");
        let _ = writeln!(out, "forebay_pfs_{name} {value}");
    }
    let _ =
        writeln!(out, "# HELP forebay_pfs_lateness_share Share of the time of requests that is lateness.");
    let _ = writeln!(out, "# TYPE forebay_pfs_lateness_share gauge");
    let _ = writeln!(out, "forebay_pfs_lateness_share {}", stats["lateness_share"]);
    let _ = writeln!(out, "# HELP forebay_pfs_lateness_us Lateness of replies in model microseconds.");
    let _ = writeln!(out, "# TYPE forebay_pfs_lateness_us gauge");
    for quantile in ["p50", "p99", "max"] {
        let value = &stats["lateness_us"][quantile];
        let _ = writeln!(out, "forebay_pfs_lateness_us{{quantile=\"{quantile}\"}} {value}");
    }
    out
}

//! What there is to know about a dataset, for people and for tools.

use serde_json::{Value, json};

use super::{CachePolicy, Dataset, Shard};
use crate::Index;
use crate::container::Container;

impl Dataset {
    /// Describes the dataset and, if there is one, its index. Reads only the header of a sidecar.
    ///
    /// Sizes are in bytes. Keys are those of `forebay inspect --json`.
    pub fn inspect(&self, index: Option<&Index>, cache: &CachePolicy) -> Value {
        let shards: Vec<Value> =
            self.shards.iter().zip(&self.files).map(|(shard, file)| of_file(shard, &**file)).collect();
        let lookup = self.find_sidecar(cache);
        let sidecar = lookup.found.map(|found| {
            json!({
                "path": found.path.to_string_lossy(),
                "place": match found.place { super::SidecarLocation::Beside => "beside", super::SidecarLocation::Cache => "cache" },
                "bytes": found.bytes.len(),
            })
        });
        let mut description = json!({
            "format": self.format().name(),
            "fingerprint": format!("{:032x}", self.fingerprint),
            "bytes": self.shards.iter().map(|shard| shard.bytes).sum::<u64>(),
            "shards": shards,
            "sidecar": sidecar,
            "warnings": lookup.warnings,
            "counted_by": self.counted_by(),
        });
        if let Some(entries) = self.entries() {
            description["entries"] = json!(entries);
        }
        if let Some(index) = index {
            description["samples"] = json!(index.samples());
            description["schema"] = json!(index.schema().name());
            description["fields"] = json!(index.fields());
            for (number, shard) in index.shards().iter().enumerate() {
                description["shards"][number]["samples"] = json!(shard.samples);
            }
            if let Some(warnings) = description["warnings"].as_array_mut() {
                warnings.extend(self.doubts(index).into_iter().map(Value::from));
            }
            // The bytes of a folder are those of its files, which only the index knows.
            for (number, shard) in index.shards().iter().enumerate().filter(|_| index.has_sample_files()) {
                description["shards"][number]["bytes"] = json!(shard.bytes);
            }
            description["bytes"] = json!(index.shards().iter().map(|shard| shard.bytes).sum::<u64>());
            description["records"] = records(index);
        }
        description
    }
}

fn of_file(shard: &Shard, file: &dyn Container) -> Value {
    let mut description = file.describe();
    description.insert("path".to_owned(), json!(shard.path.to_string_lossy()));
    description.insert("bytes".to_owned(), json!(shard.bytes));
    Value::Object(description)
}

fn records(index: &Index) -> Value {
    let summary = index.summary();
    let mut of_class = serde_json::Map::new();
    for (classes, counts) in index.meta().columns.iter().zip(&summary.class_records) {
        for (class, count) in classes.iter().zip(counts) {
            let before = of_class.get(&class.name).and_then(Value::as_u64).unwrap_or(0);
            of_class.insert(class.name.clone(), json!(before + count));
        }
    }
    json!({
        "bytes": summary.record_bytes,
        "mean_bytes": summary.record_bytes as f64 / index.samples() as f64,
        "shortest_bytes": summary.shortest_record_bytes,
        "longest_bytes": summary.longest_record_bytes,
        "excluded": summary.excluded,
        "classes": of_class,
        "backward": summary.backward_records,
    })
}

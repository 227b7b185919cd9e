//! Options of a loader, as the Python package passes them, and their comparison between the ranks
//! of a node.

use std::collections::BTreeMap;

pub use forebay_plan::config::{AccessChoice, Locate, Readers};
use forebay_plan::{Kind, LastBatch, MixtureSpec};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use forebay_tier::{MAX_LEVELS, TierOptions};

use crate::config::rank_facts::RankFacts;
use crate::config::rules;
use crate::dataset::field_decoders::FieldDecoders;
use crate::error::Error;
use crate::mesh::LinksSpec;

/// The order, as the user names it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderChoice {
    /// `sequential`, `contiguous`, `shuffle`, `local-shuffle`, `opportunistic`, `group` or `given`.
    pub kind: String,
    /// Samples per group; in `given`, ids of an epoch.
    #[serde(default)]
    pub samples: Option<u64>,
    /// Groups per window; in `opportunistic`, units.
    #[serde(default)]
    pub window: Option<u64>,
    /// Lanes.
    #[serde(default)]
    pub lanes: Option<u64>,
    /// Steps of `local-shuffle` whose samples are dealt together.
    #[serde(default)]
    pub steps: Option<u64>,
    /// Least order entropy of `opportunistic`.
    #[serde(default)]
    pub entropy: Option<f64>,
    /// Whether epochs of `given` may repeat samples, and leave out others.
    #[serde(default)]
    pub repeats: bool,
    /// Length of a unit of `opportunistic` \[bytes\].
    #[serde(default)]
    pub unit: Option<u64>,
    /// The sources of the data set, where it is a mixture.
    #[serde(default)]
    pub mixture: Option<MixtureSpec>,
}

/// How samples get from storage into batches, as `forebay.Strategy` has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StrategyChoice {
    /// How samples are located.
    pub locate: Locate,
    /// The access method.
    pub access: AccessChoice,
    /// Readers per node.
    pub readers: Option<Readers>,
    /// Whether reads bypass the page cache.
    pub direct: Option<bool>,
    /// Batch buffers per rank.
    pub batch_buffers: Option<u32>,
    /// Steps that one read may span, in orders that are read step by step.
    pub coalesce: Option<u32>,
    /// Groups of nodes that read one after another; none: all nodes read at any time.
    pub stagger: Option<Stagger>,
    /// Read-ahead in windows of each lane, or in segments for other orders.
    pub prefetch_windows: Option<u32>,
    /// Memory of each node for its share of an in-memory store.
    pub store: Option<StoreSize>,
    /// What happens where the share of another node is lost.
    pub on_lost: OnLost,
    /// Requests of a rank in flight per node of a store.
    pub fetch_buffers: AutoNumber,
    /// Most bytes of one request to a node of a store \[bytes\].
    pub fetch_bytes: AutoNumber,
}

impl StrategyChoice {
    /// Groups of nodes that read one after another; 0: the number that measures best.
    #[must_use]
    pub fn stagger_groups(&self) -> Option<u32> {
        self.stagger.map(|stagger| match stagger {
            Stagger::Groups(groups) => groups,
            Stagger::Measured(Auto::Auto) => 0,
        })
    }

    /// The parameter by which it reads the files themselves, past any tiers.
    fn bypasses_tiers(&self) -> Option<String> {
        if matches!(self.locate, Locate::Cursor | Locate::Handoff | Locate::Scan) {
            return Some(format!("locate={}", quoted(&self.locate)));
        }
        (self.access == AccessChoice::Mmap).then(|| format!("access={}", quoted(&self.access)))
    }

    /// A limit of requests to nodes of a store that the user gave.
    fn fetch_limit(&self) -> Option<(&'static str, u64)> {
        let limits = [("fetch_buffers", self.fetch_buffers), ("fetch_bytes", self.fetch_bytes)];
        limits.into_iter().find_map(|(name, limit)| limit.given().map(|number| (name, number)))
    }

    /// Checks which values go together.
    ///
    /// # Errors
    /// With the values as the user wrote them.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |message: String, hint: &str| Err(Error::Options { message, hint: hint.into() });
        if self.locate.walks() && self.access != AccessChoice::Mmap {
            let (locate, access) = (quoted(&self.locate), quoted(&self.access));
            return wrong(
                format!("Strategy(locate={locate}, access={access}): a cursor walks through a mapping"),
                "add access=\"mmap\", or take forebay_lab.strategy(\"lmdb\")",
            );
        }
        if self.store.is_some() {
            let other = if self.locate != Locate::Index {
                Some(format!("locate={}", quoted(&self.locate)))
            } else if self.access != AccessChoice::Auto {
                Some(format!("access={}", quoted(&self.access)))
            } else {
                None
            };
            if let Some(other) = other {
                return wrong(
                    format!("Strategy(store=, {other}): {FROM_MEMORY}"),
                    "leave one of the two out",
                );
            }
        } else if self.on_lost != OnLost::Raise {
            return wrong("Strategy(on_lost=\"source\") without store=".into(), "add store=\"auto\"");
        } else if let Some((name, number)) = self.fetch_limit() {
            return wrong(format!("Strategy({name}={number}) without store="), "add store=\"auto\"");
        }
        if self.direct == Some(true) && self.access == AccessChoice::Mmap {
            return wrong(
                "Strategy(access=\"mmap\", direct=True): a mapping always uses the page cache".into(),
                "",
            );
        }
        Ok(())
    }
}

/// Memory of a node for its share of an in-memory store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StoreSize {
    /// At most this many bytes.
    Bytes(u64),
    /// What the share needs, up to half of the free memory.
    Measured(Auto),
}

/// What happens where the share of another node is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnLost {
    /// An error that names the node and the step.
    #[default]
    Raise,
    /// Its samples are read from the source.
    Source,
}

/// The word of an option, with quotes.
fn quoted(word: &impl Serialize) -> String {
    serde_json::to_string(word).unwrap_or_default()
}

/// Groups of nodes that read one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Stagger {
    /// This many.
    Groups(u32),
    /// The number that measures best.
    Measured(Auto),
}

/// A number, or the engine's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AutoNumber {
    /// This number.
    Given(u64),
    /// The engine's choice.
    Chosen(Auto),
}

impl AutoNumber {
    /// The number that the user gave.
    #[must_use]
    pub fn given(self) -> Option<u64> {
        match self {
            Self::Given(number) => Some(number),
            Self::Chosen(Auto::Auto) => None,
        }
    }
}

impl Default for AutoNumber {
    fn default() -> Self {
        Self::Chosen(Auto::Auto)
    }
}

/// The word `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Auto {
    /// Decided by a measurement.
    #[serde(rename = "auto")]
    Auto,
}

/// All options of a loader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "options are independent of each other")]
pub struct Options {
    /// Distinguishes several loaders of one job.
    pub name: String,
    /// The job, as its launcher calls it.
    pub job: String,
    /// The node, as the launcher calls it.
    pub node: String,
    /// Rank in the job.
    pub rank: u32,
    /// Ranks in the job.
    pub size: u32,
    /// Rank on the node.
    pub local_rank: u32,
    /// Ranks of the job that run on this node, by local rank.
    pub local_ranks: Vec<u32>,
    /// Samples per rank and step.
    pub batch_size: u64,
    /// The order.
    pub order: OrderChoice,
    /// Seed of the order.
    pub seed: u64,
    /// What happens at the end of an epoch: `fill`, `drop`, `partial`, `carry`.
    pub last_batch: String,
    /// Number of epochs, counted from the first; nothing is read ahead beyond them.
    #[serde(default)]
    pub epochs: Option<u64>,
    /// Memory per node \[bytes\].
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// How samples get from storage into batches.
    #[serde(default)]
    pub strategy: StrategyChoice,
    /// Whether another sample replaces one that cannot be read or decoded.
    #[serde(default)]
    pub skips_bad_samples: bool,
    /// Whether data are checked against the checksums of the format.
    #[serde(default)]
    pub checksums: bool,
    /// What becomes of encoded fields, by name.
    #[serde(default)]
    pub decode: FieldDecoders,
    /// How long storage may stall before it is an error \[s\].
    pub timeout_s: u64,
    /// How the processes of other ranks are found
    /// ([`NodeSpec::launcher`](crate::rendezvous::NodeSpec::launcher)).
    #[serde(default)]
    pub launcher: Option<String>,
    /// Storage tiers of the node.
    #[serde(default)]
    pub tiers: TierOptions,
    /// The command that starts the tier daemon; it ends when the daemon listens.
    #[serde(default)]
    pub tier_daemon: Vec<String>,
    /// The other nodes, for the leader of a node in a job of several.
    #[serde(default)]
    pub links: Option<LinksSpec>,
}

/// Checks each value by itself; null was not given.
fn check_values(prefix: &str, values: &Value) -> Result<(), Error> {
    for name in rules::parameters(prefix) {
        let Some(value) = values.get(name).filter(|value| !value.is_null() && !value.is_object()) else {
            continue;
        };
        if let Some(expected) = rules::expected(&format!("{prefix}{name}"), value) {
            return Err(Error::Options {
                message: format!("{prefix}{name}: expected {expected}, found {value}"),
                hint: String::new(),
            });
        }
    }
    Ok(())
}

/// Why a store goes without what tells how to read.
const FROM_MEMORY: &str = "ranks take samples from memory, and nothing is read for them";

/// Options of a single rank, which are not compared.
const OWN: [&str; 5] = ["rank", "local_rank", "launcher", "links", "tier_daemon"];

impl Options {
    /// Parses the options from JSON and checks what needs no data set.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        let unreadable = |error: serde_json::Error| Error::Options {
            message: format!("cannot parse the options of the loader: {error}"),
            hint: String::new(),
        };
        let values: Value = serde_json::from_str(text).map_err(unreadable)?;
        check_values("", &values)?;
        check_values("order.", &values["order"])?;
        check_values("strategy.", &values["strategy"])?;
        let mut options: Self = serde_json::from_value(values).map_err(unreadable)?;
        let takes_none = options.strategy.bypasses_tiers().is_some() || options.order.kind == "opportunistic";
        if options.tiers.of_system && takes_none {
            options.tiers.tiers.clear();
        }
        options.check()?;
        Ok(options)
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = |message: String, hint: &str| Err(Error::Options { message, hint: hint.into() });
        if self.rank >= self.size {
            return wrong(
                format!("rank {} in a world of {} ranks", self.rank, self.size),
                "ranks count from 0 to size - 1",
            );
        }
        if self.local_ranks.get(self.local_rank as usize) != Some(&self.rank) {
            return wrong(
                format!(
                    "local rank {} of rank {} does not fit the node's ranks {:?}",
                    self.local_rank, self.rank, self.local_ranks
                ),
                "local_rank counts the ranks of one node from 0",
            );
        }
        self.strategy.check()?;
        self.check_tiers()?;
        let kind = self.kind(1, 1, 1)?;
        if self.strategy.locate == Locate::Handoff && kind != Kind::Sequential {
            return wrong(
                format!(
                    "the strategy finds samples by a cursor that is handed on, and the order is {}",
                    self.order.kind
                ),
                "a cursor that goes from node to node passes through the file once for all, so it takes order=\"sequential\"",
            );
        }
        if matches!(kind, Kind::Opportunistic { .. }) {
            if self.strategy.store.is_none() {
                return wrong(
                    "order opportunistic: it needs a store, which holds what nodes keep in memory".into(),
                    "add strategy=\"store\"; order=\"local-shuffle\" uses tiers",
                );
            }
            if !self.tiers.tiers.is_empty() {
                return wrong(
                    "tiers= with order opportunistic, whose nodes keep samples in memory only".into(),
                    "leave tiers= out, or take order=\"local-shuffle\"",
                );
            }
        } else if let Some(readers) = self.strategy.readers
            && self.strategy.store.is_some()
        {
            return wrong(
                format!("Strategy(store=, readers={}): {FROM_MEMORY}", quoted(&readers)),
                "leave one of the two out; only order=\"opportunistic\" has readers beside a store",
            );
        }
        let forward = matches!(kind, Kind::Sequential | Kind::Contiguous);
        if self.strategy.locate.walks() && !forward {
            return wrong(
                format!("the strategy finds samples by a cursor, and the order is {}", self.order.kind),
                "a cursor goes from record to record, so it takes order=\"sequential\" or \"contiguous\"",
            );
        }
        if self.order.mixture.is_some() && self.strategy.locate.walks() {
            return wrong(
                "the strategy finds samples by a cursor, and the data set is a mixture of several".into(),
                "use another strategy",
            );
        }
        self.last()?;
        Ok(())
    }

    fn check_tiers(&self) -> Result<(), Error> {
        let count = self.tiers.tiers.len();
        if count > MAX_LEVELS {
            return Err(Error::Options {
                message: format!("tiers=: expected at most {MAX_LEVELS} tiers, found {count}"),
                hint: String::new(),
            });
        }
        match self.strategy.bypasses_tiers() {
            Some(found) if count > 0 => Err(Error::Options {
                message: format!("tiers= with Strategy({found}), which reads the files themselves"),
                hint: "leave tiers= out, or take another strategy".into(),
            }),
            _ => Ok(()),
        }
    }

    /// Whose loaders share one budget on a node: those of the job, or those of this process where
    /// it is a job by itself.
    pub fn budget_owner(&self) -> &str {
        if self.size == 1 { "this process" } else { &self.job }
    }

    /// The kind of order; `samples` and `window` stand in for what the user left open. The data set
    /// has `total` samples.
    pub fn kind(&self, total: u64, samples: u64, window: u64) -> Result<Kind, Error> {
        Ok(match self.order.kind.as_str() {
            "sequential" => Kind::Sequential,
            "contiguous" => Kind::Contiguous,
            "shuffle" => Kind::Shuffle,
            "local-shuffle" => Kind::LocalShuffle { steps: self.order.steps.unwrap_or(1) },
            // Without a window, it follows from what the nodes keep.
            "opportunistic" => Kind::Opportunistic { window: self.order.window.unwrap_or(1) },
            "group" => Kind::Group {
                samples: self.order.samples.unwrap_or(samples),
                window: self.order.window.unwrap_or(window),
            },
            "given" => Kind::Given { among: self.order.samples.map(|_| total), repeats: self.order.repeats },
            other => {
                return Err(Error::Options {
                    message: format!("unknown order \"{other}\""),
                    hint: "valid orders: sequential, contiguous, shuffle, local-shuffle, opportunistic, group, or a function \
                           of the epoch"
                        .into(),
                });
            }
        })
    }

    /// What happens at the end of an epoch.
    pub fn last(&self) -> Result<LastBatch, Error> {
        Ok(match self.last_batch.as_str() {
            "fill" => LastBatch::Fill,
            "drop" => LastBatch::Drop,
            "partial" => LastBatch::Partial,
            "carry" => LastBatch::Carry,
            other => {
                return Err(Error::Options {
                    message: format!("unknown last_batch=\"{other}\""),
                    hint: "valid values: fill, drop, partial, carry".into(),
                });
            }
        })
    }

    /// This rank's hello in the rendezvous: its options, the fingerprint of the data set, and facts
    /// of its process.
    pub fn hello(&self, fingerprint: u128, facts: &RankFacts) -> Vec<u8> {
        let Ok(Value::Object(mut values)) = serde_json::to_value(self) else {
            unreachable!("options are a JSON object")
        };
        for own in OWN {
            values.remove(own);
        }
        values.insert(DATA_SET.into(), format!("{fingerprint:032x}").into());
        values.insert(FACTS.into(), serde_json::to_value(facts).expect("facts can be written as JSON"));
        serde_json::to_vec(&values).expect("a JSON object can be written")
    }
}

/// Key of the data set's fingerprint among the options.
const DATA_SET: &str = "data set";
/// Key of the [`RankFacts`], which may differ between ranks.
const FACTS: &str = "facts";

/// The facts of the ranks of a node; of a rank that states none, no limits and no cores.
pub fn rank_facts(hellos: &[Vec<u8>]) -> Vec<RankFacts> {
    let read = |bytes: &Vec<u8>| {
        let mut values = serde_json::from_slice::<BTreeMap<String, Value>>(bytes).ok()?;
        serde_json::from_value(values.remove(FACTS)?).ok()
    };
    hellos.iter().map(|hello| read(hello).unwrap_or_default()).collect()
}

/// Compares the hellos of the ranks of a node; the message names the first difference.
pub fn compare_hellos(hellos: &[Vec<u8>], local_ranks: &[u32]) -> Result<(), String> {
    let read = |bytes: &[u8]| serde_json::from_slice::<BTreeMap<String, Value>>(bytes).ok();
    let Some(first) = hellos.first().and_then(|bytes| read(bytes)) else {
        return Err("cannot parse the hello of local rank 0".into());
    };
    let rank = |local: usize| local_ranks.get(local).copied().unwrap_or(local as u32);
    for (local, hello) in hellos.iter().enumerate().skip(1) {
        let Some(other) = read(hello) else {
            return Err(format!(
                "cannot parse the hello of rank {}; do all ranks run the same version?",
                rank(local)
            ));
        };
        for (key, value) in first.iter().filter(|(key, _)| *key != FACTS) {
            let found = other.get(key).unwrap_or(&Value::Null);
            if let Some((part, value, found)) = difference(value, found) {
                let key = if part.is_empty() { key } else { &format!("{key}.{part}") };
                let why =
                    if key == DATA_SET { " (other files, or other options of forebay.open)" } else { "" };
                return Err(format!(
                    "the ranks disagree on {key}{why}: rank {} has {value}, rank {} has {found}",
                    rank(0),
                    rank(local)
                ));
            }
        }
    }
    Ok(())
}

/// The first difference of two values: the parameter, where they are objects, and both values.
fn difference<'a>(one: &'a Value, other: &'a Value) -> Option<(&'a str, &'a Value, &'a Value)> {
    let (Value::Object(parameters), Value::Object(_)) = (one, other) else {
        return (one != other).then_some(("", one, other));
    };
    let found = |name: &str| other.get(name).unwrap_or(&Value::Null);
    parameters.iter().find_map(|(name, value)| {
        let found = found(name);
        (value != found).then_some((name.as_str(), value, found))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(change: impl FnOnce(&mut Value)) -> Result<Options, Error> {
        let mut value = serde_json::json!({
            "name": "train", "job": "j", "node": "n", "rank": 1, "size": 2, "local_rank": 1, "local_ranks": [0, 1],
            "batch_size": 8, "order": {"kind": "group"}, "seed": 0, "last_batch": "fill", "timeout_s": 600,
        });
        change(&mut value);
        Options::from_json(&value.to_string())
    }

    #[test]
    fn wrong_options_are_named_with_the_valid_ones() {
        assert!(options(|_| ()).is_ok());
        let message = |change: fn(&mut Value)| {
            let error = options(change).unwrap_err();
            format!("{error} / {}", error.hint().unwrap_or_default())
        };
        assert!(message(|v| v["rank"] = 2.into()).starts_with("rank 2 in a world of 2 ranks"));
        assert!(message(|v| v["order"]["kind"] = "random".into()).contains("valid orders: sequential"));
        assert!(message(|v| v["last_batch"] = "pad".into()).contains("fill, drop, partial, carry"));
        assert!(
            message(|v| v["batch_size"] = 0.into())
                .starts_with("batch_size: expected an integer of at least 1, found 0")
        );
        assert!(message(|v| v["colour"] = 0.into()).contains("colour"));
        assert!(
            message(|v| v["strategy"]["batch_buffers"] = 1.into())
                .starts_with("strategy.batch_buffers: expected an integer of at least 2, found 1")
        );
        assert!(message(|v| v["strategy"]["locate"] = "cursor".into()).contains("through a mapping"));
    }

    #[test]
    fn tiers_are_refused_beyond_seven_and_where_ranks_read_the_files_themselves() {
        let with_tiers = |count: usize, of_system: bool, locate: &str, access: &str| {
            options(|v| {
                v["tiers"]["of_system"] = of_system.into();
                v["tiers"]["tiers"] = vec![serde_json::json!({"path": "/scratch", "bytes": 1}); count].into();
                v["strategy"] = serde_json::json!({"locate": locate, "access": access});
                v["order"]["kind"] = "sequential".into();
            })
        };
        assert_eq!(with_tiers(MAX_LEVELS, false, "index", "auto").unwrap().tiers.tiers.len(), 7);
        assert!(with_tiers(MAX_LEVELS + 1, false, "index", "auto").is_err());
        for (locate, access, is_fine) in [
            ("provenance", "pread", true),
            ("index", "io_uring", true),
            ("index", "mmap", false),
            ("scan", "pread", false),
            ("cursor", "mmap", false),
            ("handoff", "mmap", false),
        ] {
            assert!(with_tiers(0, false, locate, access).is_ok(), "{locate} {access}");
            assert_eq!(with_tiers(1, false, locate, access).is_ok(), is_fine, "{locate} {access}");
            let of_system = with_tiers(1, true, locate, access).unwrap();
            assert_eq!(of_system.tiers.tiers.len(), usize::from(is_fine), "{locate} {access}");
        }
    }

    #[test]
    fn an_error_names_the_option_on_which_ranks_disagree() {
        let one = options(|_| ()).unwrap();
        let same = options(|v| {
            v["rank"] = 0.into();
            v["local_rank"] = 0.into();
        })
        .unwrap();
        let other = options(|v| v["batch_size"] = 9.into()).unwrap();
        let none = RankFacts::default();
        let facts = RankFacts { address_left_bytes: Some(7), cores: vec![2, 3], paid_cores: 2 };
        let agreeing = [same.hello(5, &facts), one.hello(5, &none)];
        assert_eq!(compare_hellos(&agreeing, &[0, 1]), Ok(()));
        assert_eq!(rank_facts(&agreeing), [facts, none.clone()]);
        let text = compare_hellos(&[same.hello(5, &none), other.hello(5, &none)], &[0, 1]).unwrap_err();
        assert_eq!(text, "the ranks disagree on batch_size: rank 0 has 8, rank 1 has 9");
        let other = options(|v| v["strategy"]["coalesce"] = 2.into()).unwrap();
        let text = compare_hellos(&[same.hello(5, &none), other.hello(5, &none)], &[0, 1]).unwrap_err();
        assert_eq!(text, "the ranks disagree on strategy.coalesce: rank 0 has null, rank 1 has 2");
        let text = compare_hellos(&[same.hello(5, &none), one.hello(6, &none)], &[0, 1]).unwrap_err();
        assert!(text.starts_with("the ranks disagree on data set"));
    }
}

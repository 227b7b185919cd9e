//! Options of a loader of one rank, and their comparison between the ranks of a node.

use std::collections::BTreeMap;
use std::ops::Deref;

use forebay_plan::options::LoaderOptions;
use serde_json::Value;

use crate::config::rank_facts::RankFacts;
use crate::dataset::field_decoders::FieldDecoders;
use crate::mesh::LinksSpec;

/// All options of a loader of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// From which the decisions follow.
    pub loader: LoaderOptions,
    /// The decoders of the dataset.
    pub decode: FieldDecoders,
    /// How the processes of other ranks are found
    /// ([`NodeSpec::launcher`](crate::rendezvous::NodeSpec::launcher)).
    pub launcher: Option<String>,
    /// The command that starts the tier daemon; it ends when the daemon listens.
    pub tier_daemon: Vec<String>,
    /// The other nodes, for the leader of a node in a job of several.
    pub links: Option<LinksSpec>,
}

impl Deref for Options {
    type Target = LoaderOptions;

    fn deref(&self) -> &LoaderOptions {
        &self.loader
    }
}

/// Options of a single rank, which are not compared.
const OWN: [&str; 2] = ["rank", "local_rank"];
/// Key of the decoders among the options.
const DECODE: &str = "decode";
/// Key of the dataset's fingerprint among the options.
const DATASET: &str = "dataset";
/// Key of the [`RankFacts`], which may differ between ranks.
const FACTS: &str = "facts";

impl Options {
    /// This rank's hello in the rendezvous: its options, the fingerprint of the dataset, and facts
    /// of its process.
    pub fn hello(&self, fingerprint: u128, facts: &RankFacts) -> Vec<u8> {
        let Ok(Value::Object(mut values)) = serde_json::to_value(&self.loader) else {
            unreachable!("options are a JSON object")
        };
        for own in OWN {
            values.remove(own);
        }
        values.insert(DECODE.into(), serde_json::to_value(&self.decode).expect("decoders can be written"));
        values.insert(DATASET.into(), format!("{fingerprint:032x}").into());
        values.insert(FACTS.into(), serde_json::to_value(facts).expect("facts can be written as JSON"));
        serde_json::to_vec(&values).expect("a JSON object can be written")
    }

    /// Options that only the loader has.
    #[cfg(test)]
    pub(crate) fn of_json(values: Value) -> Result<Self, crate::error::Error> {
        let loader: LoaderOptions = serde_json::from_value(values).unwrap();
        Ok(Self {
            loader: loader.checked()?,
            decode: FieldDecoders::new(),
            launcher: None,
            tier_daemon: Vec::new(),
            links: None,
        })
    }
}

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
                    if key == DATASET { " (other files, or other options of forebay.open)" } else { "" };
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

    fn hello_of(change: impl FnOnce(&mut Value), fingerprint: u128, facts: &RankFacts) -> Vec<u8> {
        let mut value = serde_json::json!({
            "name": "train", "job": "j", "node": "n", "rank": 1, "size": 2, "local_rank": 1, "local_ranks": [0, 1],
            "batch_size": 8, "order": {"kind": "group"}, "seed": 0, "last_batch": "fill", "timeout_s": 600,
        });
        change(&mut value);
        Options::of_json(value).unwrap().hello(fingerprint, facts)
    }

    #[test]
    fn an_error_names_the_option_on_which_ranks_disagree() {
        let none = RankFacts::default();
        let facts = RankFacts { address_left_bytes: Some(7), cores: vec![2, 3], paid_cores: 2 };
        let first = |values: &mut Value| {
            values["rank"] = 0.into();
            values["local_rank"] = 0.into();
        };
        let agreeing = [hello_of(first, 5, &facts), hello_of(|_| (), 5, &none)];
        assert_eq!(compare_hellos(&agreeing, &[0, 1]), Ok(()));
        assert_eq!(rank_facts(&agreeing), [facts, none.clone()]);
        let problem = |change: fn(&mut Value), fingerprint| {
            let hellos = [hello_of(first, 5, &none), hello_of(change, fingerprint, &none)];
            compare_hellos(&hellos, &[0, 1]).unwrap_err()
        };
        assert_eq!(
            problem(|v| v["batch_size"] = 9.into(), 5),
            "the ranks disagree on batch_size: rank 0 has 8, rank 1 has 9"
        );
        assert_eq!(
            problem(|v| v["strategy"] = serde_json::json!({"coalesce": 2}), 5),
            "the ranks disagree on strategy.coalesce: rank 0 has null, rank 1 has 2"
        );
        assert!(problem(|_| (), 6).starts_with("the ranks disagree on dataset"));
    }
}

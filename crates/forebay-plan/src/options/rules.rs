//! Which values an option may have. Python converts types and calls [`check_value`] where it finds
//! a value. It checks by itself only options that never reach the engine.

use forebay_types::{CHUNK_BYTES, MAX_ANSWER_BYTES, PIECE_BYTES};
use serde_json::Value;

use crate::config::MAX_READERS;
use crate::options::OptionError;

/// Most samples per step, groups, windows and the like: more than any machine holds.
const MAX_COUNT: u64 = u32::MAX as u64;
/// What a file offset can count \[bytes\].
const MAX_BYTES: u64 = i64::MAX as u64;
/// Thirty years, which clocks can still add \[s\].
const MAX_SECONDS: f64 = 1e9;
/// Batch buffers per rank.
const MAX_BUFFERS: u64 = 64;
/// Requests of a rank in flight per node: more than any network needs to be full.
const MAX_REQUESTS: u64 = 64;
/// Least limit of a request to another node \[bytes\]: below it, headers cost more than samples.
const MIN_REQUEST_BYTES: u64 = 4 << 10;

enum Rule {
    /// An integer in a range, or one of some words.
    Integer(u64, u64, &'static [&'static str]),
    /// A number of bytes in a range, or one of some words.
    Bytes(u64, u64, &'static [&'static str]),
    /// Any integer of 64 bits that is not negative.
    Seed,
    /// A number from 0 to 1.
    Fraction,
    Seconds,
    Flag,
    Text,
    OneOf(&'static [&'static str]),
}

const COUNT: Rule = Rule::Integer(1, MAX_COUNT, &[]);

/// The options; those of a strategy, a store, an order and a tier with their parameters.
const RULES: &[(&str, Rule)] = &[
    ("batch_size", COUNT),
    ("global_batch", COUNT),
    ("name", Rule::Text),
    ("seed", Rule::Seed),
    ("node_memory", Rule::Bytes(1, MAX_BYTES, &[])),
    ("tiers.path", Rule::Text),
    ("tiers.size", Rule::Bytes(CHUNK_BYTES, MAX_BYTES, &[])),
    ("tiers.keep", Rule::Flag),
    ("tiers.force", Rule::Flag),
    ("expected_epochs", COUNT),
    ("last_batch", Rule::OneOf(&["fill", "drop", "partial", "carry"])),
    ("bad_samples", Rule::OneOf(&["raise", "skip"])),
    ("checksums", Rule::Flag),
    ("timeout", Rule::Seconds),
    ("database", Rule::Text),
    (
        "order",
        Rule::OneOf(&["sequential", "contiguous", "shuffle", "local-shuffle", "opportunistic", "group"]),
    ),
    ("order.samples", COUNT),
    ("order.window", COUNT),
    ("order.lanes", COUNT),
    ("order.steps", COUNT),
    ("order.entropy", Rule::Fraction),
    ("order.unit", Rule::Bytes(PIECE_BYTES, MAX_BYTES, &[])),
    ("strategy.locate", Rule::OneOf(&["index", "cursor", "handoff", "scan", "provenance"])),
    ("strategy.access", Rule::OneOf(&["auto", "mmap", "pread", "io_uring"])),
    ("strategy.readers", Rule::Integer(1, MAX_READERS as u64, &["per_node", "per_rank"])),
    ("strategy.direct", Rule::Flag),
    ("strategy.batch_buffers", Rule::Integer(2, MAX_BUFFERS, &[])),
    ("strategy.coalesce", COUNT),
    ("strategy.stagger", Rule::Integer(1, MAX_COUNT, &["auto"])),
    ("strategy.prefetch_windows", COUNT),
    ("store.size", Rule::Bytes(CHUNK_BYTES, MAX_BYTES, &["auto"])),
    ("store.on_lost", Rule::OneOf(&["raise", "source"])),
    ("store.requests_per_node", Rule::Integer(1, MAX_REQUESTS, &["auto"])),
    ("store.request_bytes", Rule::Bytes(MIN_REQUEST_BYTES, MAX_ANSWER_BYTES, &["auto"])),
];

/// Checks a value of the option `name`, which came from `origin`: an argument, an environment
/// variable, a file. A value that JSON cannot hold, such as a number that is not finite, is given
/// as null, which is never valid. `shown` is the value as the user wrote it.
///
/// # Errors
/// What the origin should have, and what it has.
///
/// # Panics
/// If there is no option of that name.
pub fn check_value(
    origin: &str,
    name: &str,
    value: &Value,
    shown: impl FnOnce() -> String,
) -> Result<(), OptionError> {
    let Some(expected) = expected(name, value) else { return Ok(()) };
    let separator = if expected.contains(',') { ";" } else { "," };
    let message = format!("{origin}: expected {expected}{separator} found {}", shown());
    Err(OptionError { message, hint: String::new() })
}

/// Returns what was expected of the option, or `None` if the value is valid.
fn expected(name: &str, value: &Value) -> Option<String> {
    let (_, rule) = RULES.iter().find(|(known, _)| *known == name).expect("an option");
    match rule {
        Rule::Integer(min, max, words) | Rule::Bytes(min, max, words) => {
            let is_word = value.as_str().is_some_and(|text| words.contains(&text));
            let found = value.as_u64();
            if is_word || found.is_some_and(|found| (min..=max).contains(&&found)) {
                return None;
            }
            // What is too large for 64 bits has become a float.
            let is_above = found.is_some_and(|found| found > *max)
                || value.as_f64().is_some_and(|float| float.fract() == 0.0 && float > *max as f64);
            let number = match (rule, is_above) {
                (Rule::Bytes(..), true) => format!("at most {}", bytes_text(*max)),
                (Rule::Bytes(1, ..), false) => "a positive number of bytes".to_owned(),
                (Rule::Bytes(..), false) => format!("at least {}", bytes_text(*min)),
                (_, true) => format!("an integer of at most {max}"),
                (_, false) => format!("an integer of at least {min}"),
            };
            Some(if words.is_empty() { number } else { format!("{number}, or {}", words.join(" or ")) })
        }
        Rule::Seed => value.as_u64().is_none().then(|| "an integer from 0 to 2**64 - 1".into()),
        Rule::Fraction => {
            let is_one = value.as_f64().is_some_and(|share| (0.0..=1.0).contains(&share));
            (!is_one).then(|| "a number from 0 to 1".into())
        }
        Rule::Seconds => match value.as_f64() {
            Some(seconds) if seconds > MAX_SECONDS => Some(format!("at most {MAX_SECONDS} seconds")),
            Some(seconds) if seconds > 0.0 => None,
            _ => Some("a positive number of seconds".into()),
        },
        Rule::Flag => (!value.is_boolean()).then(|| "True or False".into()),
        Rule::Text => value.as_str().is_none_or(str::is_empty).then(|| "a non-empty string".into()),
        Rule::OneOf(words) => {
            let is_one = value.as_str().is_some_and(|text| words.contains(&text));
            (!is_one).then(|| format!("one of {}", words.join(", ")))
        }
    }
}

/// Returns a size as an option may have it, such as `64KiB`.
fn bytes_text(bytes: u64) -> String {
    match bytes.trailing_zeros() {
        20.. => format!("{}MiB", bytes >> 20),
        10.. => format!("{}KiB", bytes >> 10),
        _ => format!("{bytes} bytes"),
    }
}

/// Returns the words that an option may be; empty for one that is no word.
#[must_use]
pub fn option_words(name: &str) -> &'static [&'static str] {
    match RULES.iter().find(|(known, _)| *known == name) {
        Some((_, Rule::OneOf(words) | Rule::Integer(_, _, words) | Rule::Bytes(_, _, words))) => words,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, text: &str) -> Option<String> {
        expected(name, &serde_json::from_str(text).unwrap())
    }

    #[test]
    fn an_error_names_the_origin_of_the_value_and_what_the_user_wrote() {
        for (origin, name, value, shown, message) in [
            (
                "batch_size=",
                "batch_size",
                "0",
                "0",
                "batch_size=: expected an integer of at least 1, found 0",
            ),
            (
                "FOREBAY_LAST_BATCH",
                "last_batch",
                "\"pad\"",
                "'pad'",
                "FOREBAY_LAST_BATCH: expected one of fill, drop, partial, carry; found 'pad'",
            ),
            (
                "forebay.toml: order",
                "order.unit",
                "4096",
                "'4KiB'",
                "forebay.toml: order: expected at least 64KiB, found '4KiB'",
            ),
        ] {
            let value: Value = serde_json::from_str(value).unwrap();
            let error = check_value(origin, name, &value, || shown.into()).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
        assert!(check_value("seed=", "seed", &7.into(), || unreachable!()).is_ok());
    }

    #[test]
    fn values_at_the_edges_of_a_range_are_valid_and_those_beyond_are_not() {
        for (name, valid, wrong) in [
            (
                "batch_size",
                vec!["1", "4294967295"],
                vec!["0", "-1", "4294967296", "2.5", "true", "\"1\"", "null"],
            ),
            ("seed", vec!["0", "18446744073709551615"], vec!["-1", "18446744073709551616", "0.5"]),
            ("node_memory", vec!["1", "9223372036854775807"], vec!["0", "9223372036854775808"]),
            ("timeout", vec!["0.1", "5", "1000000000"], vec!["0", "-1", "1e10", "null", "\"5\""]),
            ("strategy.readers", vec!["64", "\"per_node\"", "\"per_rank\""], vec!["65", "0", "\"auto\""]),
            ("strategy.batch_buffers", vec!["2", "64"], vec!["1", "65"]),
            ("strategy.stagger", vec!["1", "\"auto\""], vec!["0", "\"per_node\""]),
            ("order.entropy", vec!["0", "0.9", "1"], vec!["-0.1", "1.1", "null", "\"0.9\""]),
            ("order.unit", vec!["65536"], vec!["65535", "null", "\"1MiB\""]),
            ("strategy.direct", vec!["true"], vec!["1", "\"true\""]),
            ("tiers.size", vec!["1048576", "9223372036854775807"], vec!["1048575", "9223372036854775808"]),
            ("last_batch", vec!["\"carry\""], vec!["\"pad\"", "1"]),
            ("name", vec!["\"x\""], vec!["\"\"", "1"]),
        ] {
            for text in valid {
                assert_eq!(check(name, text), None, "{name}={text}");
            }
            for text in wrong {
                assert!(check(name, text).is_some(), "{name}={text}");
            }
        }
        assert_eq!(check("batch_size", "18446744073709551616").unwrap(), "an integer of at most 4294967295");
        assert_eq!(
            check("strategy.readers", "0").unwrap(),
            "an integer of at least 1, or per_node or per_rank"
        );
    }
}

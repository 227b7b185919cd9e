//! Any bytes as messages of a peer, for fuzzing.

use forebay_types::MAX_ANSWER_BYTES;

use crate::message::answer::AnswerHeader;
use crate::message::auth::{Hello, parse_verdict};
use crate::message::request::RequestHeader;
use crate::message::{auth, request};

/// Parses any bytes as each message of the protocol.
///
/// # Panics
/// When a parser accepts entries that are not inside the share, or does not read back what it
/// accepts.
pub fn parse_any(bytes: &[u8]) {
    if let Some(Some(Ok(hello))) = bytes.first_chunk().map(Hello::parse) {
        assert_eq!(Some(&hello.encode()), bytes.first_chunk::<{ auth::HELLO_BYTES }>());
    }
    if let Some(Ok(outcome)) = bytes.first_chunk().map(parse_verdict)
        && outcome.is_ok()
    {
        assert_eq!(Some(&auth::verdict(outcome)), bytes.first_chunk());
    }
    if let Some(Ok(header)) = bytes.first_chunk().map(AnswerHeader::parse) {
        assert_eq!(Some(&header.encode()), bytes.first_chunk());
    }
    // The first two bytes choose the length of the share, so that entries are near its end.
    let Some((&share_bytes, rest)) = bytes.split_first_chunk() else { return };
    let share_bytes = u64::from(u16::from_le_bytes(share_bytes)).saturating_pow(4);
    let Some((start, rest)) = rest.split_first_chunk() else { return };
    let Ok(header) = RequestHeader::parse(start) else { return };
    let mut entries = Vec::new();
    if let Ok(bytes) = request::parse(header, rest, share_bytes, &mut entries) {
        let mut end = 0;
        for entry in &entries {
            assert!(entry.length > 0 && entry.offset >= end, "{entry:?}");
            end = entry.offset + entry.length;
        }
        assert!(end <= share_bytes && bytes <= MAX_ANSWER_BYTES, "{end} {bytes}");
        assert_eq!(bytes, entries.iter().map(|entry| entry.length).sum::<u64>());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(
            start in prop::collection::vec(any::<u8>(), 0..120), count in 0_u8..40, entries: Vec<u8>, share_bytes: u16,
        ) {
            parse_any(&start);
            // With a header that fits, so that entries are parsed.
            let mut request = share_bytes.to_le_bytes().to_vec();
            request.extend_from_slice(&[0; 8]);
            request.extend_from_slice(&u32::from(count).to_le_bytes());
            request.extend_from_slice(&(entries.len() as u32).to_le_bytes());
            request.extend_from_slice(&entries);
            parse_any(&request);
        }
    }
}

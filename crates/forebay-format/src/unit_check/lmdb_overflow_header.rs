//! The header of a run of overflow pages, checked when the value after it is read.

use std::fmt;

use super::lmdb_identity::Identity;
use super::lmdb_page_error::{PageError, hex16};

/// Page type bit of the first page of an overflow run.
const PAGE_IS_OVERFLOW: u16 = 4;

/// Checks the first bytes of an overflow run: the header of page `page`, before a value of `length`
/// bytes.
///
/// `head` holds at least [`Dialect::header_bytes`] bytes from `page * identity.page_bytes` on. The
/// scan does not read overflow pages; a reader of a value gets the header at no cost and checks it
/// here.
pub fn check_overflow_header(
    identity: &Identity,
    page: u64,
    length: u64,
    head: &[u8],
) -> Result<(), PageError> {
    let dialect = identity.dialect;
    let header = dialect.header_bytes() as usize;
    let offset = page.saturating_mul(u64::from(identity.page_bytes));
    let error = |at: usize, what: &str, expected: &dyn fmt::Display, found: &dyn fmt::Display| {
        Err(PageError::new(
            offset.saturating_add(at as u64),
            format!("LMDB overflow page {page}: {what}"),
            expected,
            found,
        ))
    };
    if head.len() < header {
        return error(0, "header", &format!("{header} bytes"), &head.len());
    }
    let stored = dialect.word(head, 0);
    if stored != page {
        return error(0, "page number", &page, &stored);
    }
    let flags = dialect.u16(head, header - 6);
    if flags != PAGE_IS_OVERFLOW {
        return error(header - 6, "page type", &hex16(PAGE_IS_OVERFLOW), &hex16(flags));
    }
    let pages = u64::from(dialect.u32(head, header - 4));
    let bytes = u64::from(dialect.header_bytes() - 1 + identity.checksum_bytes).saturating_add(length);
    let least = bytes / u64::from(identity.page_bytes.max(1)) + 1;
    if pages < least {
        return error(
            header - 4,
            "pages of the run",
            &format!("at least {least} for {length} bytes"),
            &pages,
        );
    }
    Ok(())
}

//! Which members make a sample, and as which field: the rules of `WebDataset`, to the letter.
//!
//! The pattern `^((?:.*/|)[^.]+)[.]([^/]*)$` splits a name into a key and an extension: the
//! extension begins after the first dot of the last component. Neighbours with the same key are one
//! sample, whose fields are named by the extensions in lower case. Source: `base_plus_ext`,
//! `tar_file_iterator` and `group_by_keys` of webdataset 1.0.2.

/// Splits a name into key and extension; `None` if the pattern does not match, and the member
/// belongs to no sample.
pub(super) fn key_and_extension(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let last = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let dot = last + name[last..].iter().position(|byte| *byte == b'.')?;
    // `[^.]+` ends at the dot. It begins at the start, or after a slash without a line feed before
    // it (`.` does not match line feeds). The later it begins, the fewer dots can be in it.
    let line = name.iter().position(|byte| *byte == b'\n').unwrap_or(name.len());
    let reach = &name[..line.min(dot.saturating_sub(1))];
    let begin = reach.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let stem = &name[begin..dot];
    if stem.is_empty() || stem.contains(&b'.') {
        return None;
    }
    Some((&name[..dot], &name[dot + 1..]))
}

/// Whether `WebDataset` skips a member as one about the archive: `__name__`, alone or as a
/// directory.
pub(super) fn is_about_the_archive(name: &[u8]) -> bool {
    let Some(slash) = name.iter().position(|byte| *byte == b'/') else {
        // In the pattern `__[^/]*__($|/)` a `$` also matches before a last line feed; a check of
        // both ends comes first.
        let line = name.strip_suffix(b"\n").unwrap_or(name);
        let by_pattern = line.len() >= 4 && line.starts_with(b"__") && line.ends_with(b"__");
        return by_pattern || (name.starts_with(b"__") && name.ends_with(b"__"));
    };
    let first = &name[..slash];
    first.len() >= 4 && first.starts_with(b"__") && first.ends_with(b"__")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_as_the_pattern_says() {
        // What `re.match` of Python 3.11 answers for the pattern above.
        type Case<'a> = (&'a [u8], Option<(&'a [u8], &'a [u8])>);
        let cases: [Case<'_>; 20] = [
            (b"a/b.c/img.seg.png", Some((b"a/b.c/img", b"seg.png"))),
            (b"x.jpg", Some((b"x", b"jpg"))),
            (b"x.", Some((b"x", b""))),
            (b".hidden", None),
            (b"nodot", None),
            (b"a.b/nodot", None),
            (b"a/.hidden.txt", Some((b"a/", b"hidden.txt"))),
            (b"a.b/.hidden", None),
            (b"x.q/y/.h", Some((b"x.q/y/", b"h"))),
            (b"x/y.z/.h", None),
            (b"/.h", Some((b"/", b"h"))),
            (b"//.h", Some((b"//", b"h"))),
            (b"./d.jpg", Some((b"./d", b"jpg"))),
            (b"d..e", Some((b"d", b".e"))),
            (b"", None),
            (b"a/", None),
            (b"a\nb/c.jpg", Some((b"a\nb/c", b"jpg"))),
            (b"a\nb.c/d.jpg", None),
            (b"a.b/c\n/d.jpg", Some((b"a.b/c\n/d", b"jpg"))),
            (b"x.a\nb", Some((b"x", b"a\nb"))),
        ];
        for (name, expected) in cases {
            assert_eq!(key_and_extension(name), expected, "{}", name.escape_ascii());
        }
    }

    #[test]
    fn members_about_the_archive_are_known() {
        for name in [&b"__meta__"[..], b"____", b"__x__/a.jpg", b"__a.b__", b"__x__\n", b"___"] {
            assert!(is_about_the_archive(name), "{}", name.escape_ascii());
        }
        for name in [&b"__meta"[..], b"a/__x__", b"__x__.jpg", b"__x/__", b"__x__\n/a"] {
            assert!(!is_about_the_archive(name), "{}", name.escape_ascii());
        }
    }
}

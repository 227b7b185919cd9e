//! The markers of a JPEG (ITU-T T.81, B.1), and what libjpeg refuses in their segments.
//!
//! The decoder of this crate takes tables, scans and second frames that libjpeg-turbo does not, and
//! makes other pixels of them than any other reader. So all segments are checked before, up to the
//! end of the image, by the rules of jdmarker.c, jdhuff.c, jdphuff.c, jdlossls.c and jdarith.c.
//! Tables count where a scan uses them.

use crate::error::ImageError;

pub(crate) const SOI: u8 = 0xd8;
pub(crate) const EOI: u8 = 0xd9;
pub(crate) const SOS: u8 = 0xda;
pub(crate) const APP14: u8 = 0xee;
const DHT: u8 = 0xc4;
const DAC: u8 = 0xcc;
const DNL: u8 = 0xdc;
const DQT: u8 = 0xdb;
const DRI: u8 = 0xdd;
/// The first of eight that take turns.
const RST: u8 = 0xd0;

/// Tables of one kind: Huffman or quantization; arithmetic coding has more.
const TABLES: usize = 4;
const ARITHMETIC_TABLES: u8 = 16;

/// Values of a quantization table.
const BLOCK_VALUES: usize = 64;

/// Largest symbols of a Huffman table for differences: their bits, which lossless images have more
/// of.
const MAX_SYMBOL: u8 = 15;
const MAX_LOSSLESS_SYMBOL: u8 = 16;

/// Coefficients, from the first on, of a progressive image of which libjpeg makes smooth guesses if
/// scans lack them (jdcoefct.c).
const NEEDED: u8 = 10;

/// Most bits that a scan leaves to later ones.
const MAX_SHIFT: u8 = 13;

/// A marker, and what follows its length.
pub(crate) struct Marker<'a> {
    pub(crate) code: u8,
    /// Offset of the byte after the marker \[bytes\].
    pub(crate) at: usize,
    pub(crate) segment: &'a [u8],
}

/// Goes through the markers of an image. What is between them is skipped, as by the C library:
/// bytes that are none, and the data of scans.
pub(crate) struct Markers<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Markers<'a> {
    /// Begins after the start of the image.
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self { data, at: 2 }
    }

    /// The next marker; `None` at the end of the data.
    pub(crate) fn next(&mut self) -> Result<Option<Marker<'a>>, ImageError> {
        let found =
            self.data[self.at..].windows(2).position(|two| two[0] == 0xff && !matches!(two[1], 0 | 0xff));
        let Some(found) = found else { return Ok(None) };
        let (code, at) = (self.data[self.at + found + 1], self.at + found + 2);
        self.at = at;
        // Those without a segment.
        if matches!(code, 0x01 | 0xd0..=0xd9) {
            return Ok(Some(Marker { code, at, segment: &[] }));
        }
        let length = self.data.get(at..at + 2).map(|two| usize::from(u16::from_be_bytes([two[0], two[1]])));
        let segment =
            length.filter(|length| *length >= 2).and_then(|length| self.data.get(at + 2..at + length));
        let Some(segment) = segment else {
            let found = format!("{} bytes of {}", self.data.len() - at, length.unwrap_or(2));
            return Err(wrong(&format!("segment of marker ff {code:02x}"), at, "a whole segment", found));
        };
        self.at += 2 + segment.len();
        Ok(Some(Marker { code, at, segment }))
    }
}

pub(crate) fn wrong(what: &str, at: usize, expected: &str, found: impl Into<String>) -> ImageError {
    ImageError::new(format!("JPEG: {what}"), at, expected, found)
}

/// Whether a marker begins a frame.
pub(crate) fn is_frame(code: u8) -> bool {
    matches!(code, 0xc0..=0xcf) && !matches!(code, DHT | 0xc8 | DAC)
}

/// Whether a marker after the pixels of an image has a segment that libjpeg reads or skips.
fn is_known(code: u8) -> bool {
    matches!(code, DHT | DAC | SOS | DQT | DRI | DNL | 0xe0..=0xef | 0xfe)
}

/// What is wrong with a Huffman table, if a scan uses it.
#[derive(Clone, Copy, Default)]
struct Huffman {
    /// A code of all ones, or more codes than a length has.
    has_bogus_code: bool,
    largest_symbol: u8,
}

/// What the markers say of a sound image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Where the image ends \[bytes\].
    pub(crate) end: usize,
    /// Whether its scans lack coefficients, which libjpeg guesses from the blocks beside.
    pub(crate) is_guessed: bool,
}

/// Checks all segments.
pub(crate) fn check(data: &[u8]) -> Result<Checked, ImageError> {
    let (mut frame, mut components, mut scans, mut progress) = (None, None, 0, Progress::default());
    let (mut has_restarts, mut next_restart) = (false, RST);
    // Whether all pixels have come: what is cut off then is no part of the image.
    let mut is_whole = false;
    let mut tables = [[Huffman::default(); TABLES]; 2];
    let mut markers = Markers::new(data);
    loop {
        let Marker { code, at, segment } = match markers.next() {
            Ok(Some(marker)) => marker,
            Ok(None) => break,
            // libjpeg waits for the rest of a segment that it knows.
            Err(_) if is_whole && is_known(data[markers.at - 1]) => {
                return progress.end(markers.at - 2, frame);
            }
            Err(error) => return Err(error),
        };
        match code {
            EOI => return progress.end(at, frame),
            SOI => return Err(wrong("marker", at - 2, "one start of the image", "a second one")),
            DHT => huffman(segment, at, &mut tables)?,
            DAC => conditioning(segment, at)?,
            DQT => quantization(segment, at)?,
            DRI => {
                let [high, low] = segment else {
                    return Err(wrong("restart interval", at, "2 bytes", segment.len().to_string()));
                };
                has_restarts = high | low != 0;
            }
            RST..=0xd7 if is_whole && at == data.len() => return progress.end(at - 2, frame),
            RST..=0xd7 if scans > 0 => {
                if !has_restarts || code != next_restart {
                    let expected =
                        if has_restarts { format!("ff {next_restart:02x}") } else { "none".into() };
                    return Err(wrong("restart of a scan", at - 2, &expected, format!("ff {code:02x}")));
                }
                next_restart = RST | (code + 1) & 7;
            }
            SOS => {
                scan(segment, at, frame.unwrap_or(0xc0), &tables)?;
                scans += 1;
                next_restart = RST;
                is_whole = matches!(frame, Some(0xc0 | 0xc1)) && segment.first() == components;
                progress.scan(segment);
            }
            _ if is_frame(code) => {
                if frame.replace(code).is_some() {
                    return Err(wrong("frame header", at - 2, "one", "a second one"));
                }
                components = segment.get(5);
                progress = Progress::of(code, segment);
            }
            // Restarts before any scan, and segments that say nothing of pixels.
            0x01 | RST..=0xd7 | DNL | 0xe0..=0xef | 0xfe => {}
            _ => return Err(wrong("marker", at - 2, "one of an image", format!("ff {code:02x}"))),
        }
    }
    // Arithmetic coding goes on with zeros after its last byte: there is no other sign of the end.
    if scans > 0 && matches!(frame, Some(0xc9..)) {
        return Err(wrong(
            "end of the image",
            data.len(),
            "ff d9 after the last scan",
            "the end of the data",
        ));
    }
    progress.end(data.len(), frame)
}

/// The components of a progressive image, and which of the coefficients that are needed scans have
/// completed; of another image none.
#[derive(Default)]
struct Progress(Vec<(u8, u16)>);

impl Progress {
    fn of(code: u8, segment: &[u8]) -> Self {
        let components = segment.get(6..).filter(|_| matches!(code, 0xc2 | 0xca)).unwrap_or_default();
        Self(components.chunks(3).map(|component| (component[0], 0)).collect())
    }

    /// Takes the header of a scan, which is sound.
    fn scan(&mut self, segment: &[u8]) {
        let [components @ .., start, end, bits] = &segment[1..] else { return };
        // Of the first coefficient, some bits are enough.
        let shift = bits & 15;
        let is_final = *start == 0 || shift == 0;
        for component in components.chunks(2).filter(|_| is_final) {
            for (_, done) in self.0.iter_mut().filter(|(id, _)| *id == component[0]) {
                (*start..=*end.min(&(NEEDED - 1))).for_each(|coefficient| *done |= 1 << coefficient);
            }
        }
    }

    /// Says whether libjpeg makes guesses: it does so once each component has its first
    /// coefficient. Those of arithmetic coding are refused, as the decoder makes none there.
    fn end(&self, at: usize, frame: Option<u8>) -> Result<Checked, ImageError> {
        let has_first = self.0.iter().all(|(_, done)| done & 1 == 1);
        let lacking = self.0.iter().find(|(_, done)| has_first && *done != (1 << NEEDED) - 1);
        match lacking {
            Some((id, done)) if frame == Some(0xca) => {
                let expected = format!("coefficients 0 to {} of each component", NEEDED - 1);
                let found = format!("{} of component {id}", done.count_ones());
                Err(wrong("scans of a progressive image", at, &expected, found))
            }
            _ => Ok(Checked { end: at, is_guessed: lacking.is_some() }),
        }
    }
}

/// Checks the header of a scan of a frame with marker `frame`.
fn scan(segment: &[u8], at: usize, frame: u8, tables: &[[Huffman; TABLES]; 2]) -> Result<(), ImageError> {
    let count = usize::from(segment.first().copied().unwrap_or(0));
    if !(1..=4).contains(&count) || segment.len() != 2 * count + 4 {
        let found = format!("{} bytes for {count}", segment.len());
        return Err(wrong("header of a scan", at, "1 to 4 components, and 4 bytes", found));
    }
    let (components, rest) = segment[1..].split_at(2 * count);
    let (start, end, before, shift) = (rest[0], rest[1], rest[2] >> 4, rest[2] & 15);
    let is_lossless = frame == 0xc3;
    let is_sound = match frame {
        0xc2 | 0xca => {
            let is_band = if start == 0 { end == 0 } else { start <= end && end < 64 && count == 1 };
            is_band && (before == 0 || before == shift + 1) && shift <= MAX_SHIFT
        }
        // The predictor, and bits that are left out.
        0xc3 => (1..=7).contains(&start) && end == 0 && before == 0 && shift < 8,
        _ => true,
    };
    if !is_sound {
        let found = format!("{start} to {end}, bits {before} and {shift}");
        return Err(wrong("progression of a scan", at, "a valid one", found));
    }
    if !matches!(frame, 0xc0..=0xc3) {
        return Ok(());
    }
    // Which tables it uses: of differences, and of the other coefficients.
    let used = match frame {
        0xc2 => [start == 0 && before == 0, start > 0],
        _ => [true, !is_lossless],
    };
    let largest = [if is_lossless { MAX_LOSSLESS_SYMBOL } else { MAX_SYMBOL }, u8::MAX];
    for component in components.chunks_exact(2) {
        for (kind, table) in [component[1] >> 4, component[1] & 15].into_iter().enumerate() {
            let table = tables[kind].get(usize::from(table)).copied().unwrap_or_default();
            if used[kind] && (table.has_bogus_code || table.largest_symbol > largest[kind]) {
                let found = if table.has_bogus_code { "more, or one of all ones" } else { "larger symbols" };
                return Err(wrong("Huffman table of a scan", at, "codes that their lengths have", found));
            }
        }
    }
    Ok(())
}

/// Reads Huffman tables.
fn huffman(segment: &[u8], at: usize, tables: &mut [[Huffman; TABLES]; 2]) -> Result<(), ImageError> {
    let mut rest = segment;
    while let Some((head, behind)) = rest.split_first_chunk::<17>() {
        let (index, lengths) = (head[0], &head[1..]);
        let count = lengths.iter().copied().map(usize::from).sum();
        let table =
            tables.get_mut(usize::from(index >> 4)).and_then(|of| of.get_mut(usize::from(index & 15)));
        let (Some(table), true, Some(symbols)) = (table, count <= 256, behind.get(..count)) else {
            let found = format!("table {index:02x} of {count} codes in {} bytes", behind.len());
            return Err(wrong("Huffman table", at, "00 to 13, of as many bytes as codes", found));
        };
        let (mut code, mut has_bogus_code) = (0_u32, false);
        for (bits, codes) in (1..).zip(lengths) {
            code += u32::from(*codes);
            has_bogus_code |= *codes > 0 && code >= 1 << bits;
            code <<= 1;
        }
        *table = Huffman { has_bogus_code, largest_symbol: symbols.iter().copied().max().unwrap_or(0) };
        rest = &behind[count..];
    }
    if rest.is_empty() { Ok(()) } else { Err(wrong("Huffman table", at, "whole tables", "bytes after them")) }
}

/// Checks the conditioning of arithmetic coding.
fn conditioning(segment: &[u8], at: usize) -> Result<(), ImageError> {
    let is_sound = |pair: &[u8]| match pair {
        [index, value] if *index < ARITHMETIC_TABLES => value & 15 <= value >> 4,
        [index, _] => *index < 2 * ARITHMETIC_TABLES,
        _ => false,
    };
    match segment.chunks(2).find(|pair| !is_sound(pair)) {
        None => Ok(()),
        Some(pair) => {
            let found = format!("{pair:02x?}");
            Err(wrong(
                "conditioning of arithmetic coding",
                at,
                "a table, and a lower and an upper bound",
                found,
            ))
        }
    }
}

/// Checks quantization tables.
fn quantization(segment: &[u8], at: usize) -> Result<(), ImageError> {
    let mut rest = segment;
    while let [index, behind @ ..] = rest {
        let bytes = if index >> 4 == 0 { BLOCK_VALUES } else { 2 * BLOCK_VALUES };
        if usize::from(index & 15) >= TABLES || behind.len() < bytes {
            let found = format!("table {index:02x} in {} bytes", behind.len());
            return Err(wrong("quantization table", at, "one of four, of 64 values", found));
        }
        rest = &behind[bytes..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment with its marker and length.
    fn segment(code: u8, bytes: &[u8]) -> Vec<u8> {
        [&[0xff, code][..], &(bytes.len() as u16 + 2).to_be_bytes(), bytes].concat()
    }

    /// An image of these segments.
    fn image(segments: &[Vec<u8>]) -> Vec<u8> {
        [&[0xff, SOI][..], &segments.concat(), &[0xff, EOI], b"more"].concat()
    }

    /// A Huffman table with `lengths[i]` codes of `i + 1` bits.
    fn table(index: u8, lengths: &[u8], symbol: u8) -> Vec<u8> {
        let count = lengths.iter().copied().map(usize::from).sum();
        let mut bytes = vec![index];
        bytes.extend((0..16).map(|bits| lengths.get(bits).copied().unwrap_or(0)));
        bytes.extend(vec![symbol; count]);
        segment(DHT, &bytes)
    }

    fn frame(code: u8) -> Vec<u8> {
        segment(code, &[8, 0, 8, 0, 8, 1, 1, 0x11, 0])
    }

    fn scan_of(progression: [u8; 3]) -> Vec<u8> {
        let interval = segment(DRI, &[0, 4]);
        [&interval[..], &segment(SOS, &[&[1, 1, 0][..], &progression].concat()), &[1, 0xff, 0, 0xff, 0xd0, 3]]
            .concat()
    }

    const SEQUENTIAL: [u8; 3] = [0, 63, 0];

    fn end(image: &[u8]) -> usize {
        check(image).unwrap().end
    }

    /// What is refused of an image.
    fn refused(segments: &[Vec<u8>]) -> String {
        check(&image(segments)).err().map_or_else(String::new, |error| error.what)
    }

    fn is_refused(segments: &[Vec<u8>]) -> bool {
        check(&image(segments)).is_err()
    }

    #[test]
    fn the_end_of_the_image_is_that_of_its_first_end_marker() {
        let sound = image(&[frame(0xc0), scan_of(SEQUENTIAL)]);
        assert_eq!(end(&sound), sound.len() - 4);
        let later = [&sound[..], &[0xff, EOI]].concat();
        assert_eq!(end(&later), sound.len() - 4);
        assert_eq!(end(&sound[..sound.len() - 6]), sound.len() - 6);
    }

    #[test]
    fn a_broken_end_marker_ends_an_image_that_is_whole() {
        let sequential = [frame(0xc0), scan_of(SEQUENTIAL)];
        let progressive = [frame(0xc2), scan_of([0; 3])];
        for (segments, is_whole) in
            [(&sequential[..], true), (&progressive, false), (&sequential[..1], false)]
        {
            let sound = image(segments);
            let cut = |last| [&sound[..sound.len() - 5], &[last]].concat();
            assert!(check(&cut(0x41)).is_err() && check(&cut(0xd8)).is_err());
            for last in [0xd0, 0xd5, 0xe0, 0xfe] {
                let broken = cut(last);
                let found = check(&broken).map(|checked| checked.end);
                if is_whole {
                    assert_eq!(found, Ok(broken.len() - 2), "{last:02x}");
                } else if last > 0xd7 {
                    assert!(found.is_err(), "{last:02x}");
                }
            }
        }
    }

    #[test]
    fn arithmetic_coding_ends_with_its_marker() {
        for code in [0xc9, 0xca] {
            let scans = if code == 0xc9 { vec![SEQUENTIAL] } else { vec![[0; 3], [1, 63, 0]] };
            let scans = scans.into_iter().flat_map(scan_of).collect();
            let sound = image(&[frame(code), scans]);
            assert_eq!(end(&sound), sound.len() - 4);
            for cut in [5, 6, 7, 9] {
                assert!(check(&sound[..sound.len() - cut]).is_err(), "{code:02x} without {cut} bytes");
            }
        }
    }

    #[test]
    fn a_second_frame_or_start_and_unknown_markers_are_refused() {
        let (frame, scan) = (frame(0xc0), scan_of(SEQUENTIAL));
        for odd in
            [frame.clone(), vec![0xff, SOI], segment(0xc8, b""), segment(0x02, b""), segment(0xf0, b"")]
        {
            assert!(is_refused(&[frame.clone(), scan.clone(), odd.clone()]), "{odd:02x?}");
        }
        for known in [segment(0xe1, b"x"), segment(0xfe, b""), segment(DNL, &[0, 8]), segment(DRI, &[0, 1])] {
            assert!(!is_refused(&[frame.clone(), scan.clone(), known]));
        }
    }

    #[test]
    fn restarts_take_turns_in_each_scan() {
        let scan = segment(SOS, &[&[1, 1, 0][..], &SEQUENTIAL].concat());
        let of = |interval: u8, restarts: &[u8]| {
            let data = restarts.iter().flat_map(|restart| [7, 0xff, 0xd0 + restart, 8]).collect();
            let once = [segment(DRI, &[0, interval]), scan.clone(), data].concat();
            is_refused(&[frame(0xc0), once.clone(), once])
        };
        assert!(!of(1, &[0, 1, 2, 3, 4, 5, 6, 7, 0, 1]) && !of(1, &[]) && !of(0, &[]));
        assert!(of(1, &[1]) && of(1, &[0, 2]) && of(1, &[0, 0]) && of(0, &[0]));
    }

    #[test]
    fn scans_that_no_progression_has_are_refused() {
        for (code, progression, is_sound) in [
            (0xc0, [0, 63, 0], true),
            (0xc0, [0, 5, 0x21], true),
            (0xc2, [0, 0, 0x01], true),
            (0xc2, [0, 0, 0x10], true),
            (0xc2, [1, 63, 0x21], true),
            (0xc2, [0, 1, 0], false),
            (0xc2, [6, 5, 0], false),
            (0xc2, [1, 64, 0], false),
            (0xc2, [1, 5, 0x20], false),
            (0xc2, [1, 5, 0x0e], false),
            (0xca, [1, 64, 0], false),
            (0xc3, [1, 0, 0x07], true),
            (0xc3, [0, 0, 0], false),
            (0xc3, [8, 0, 0], false),
            (0xc3, [1, 1, 0], false),
            (0xc3, [1, 0, 0x10], false),
            (0xc3, [1, 0, 0x08], false),
        ] {
            let found = refused(&[frame(code), scan_of(progression)]) == "JPEG: progression of a scan";
            assert_eq!(found, !is_sound, "{code:02x}: {progression:?}");
        }
        assert!(is_refused(&[frame(0xc0), segment(SOS, &[0, 0, 63, 0])]));
        assert!(is_refused(&[frame(0xc0), segment(SOS, &[1, 1, 0, 0, 63, 0, 0])]));
    }

    #[test]
    fn coefficients_that_scans_lack_are_guessed() {
        for (scans, is_guessed) in [
            (&[[0, 0, 0], [1, 63, 0]][..], false),
            (&[[0, 0, 1], [1, 5, 0], [6, 63, 0], [0, 0, 0x10]], false),
            (&[[0, 0, 0], [1, 9, 0]], false),
            (&[[0, 0, 0]], true),
            (&[[1, 63, 0]], false),
            (&[], false),
            (&[[0, 0, 1], [1, 63, 0]], false),
            (&[[0, 0, 0], [1, 63, 1]], true),
            (&[[0, 0, 0], [1, 8, 0]], true),
        ] {
            for code in [0xc2, 0xca] {
                let segments: Vec<_> =
                    [frame(code)].into_iter().chain(scans.iter().copied().map(scan_of)).collect();
                let found = check(&image(&segments)).map(|checked| checked.is_guessed);
                match found {
                    Ok(found) => assert_eq!(found, is_guessed, "{code:02x}: {scans:?}"),
                    Err(_) => assert!(code == 0xca && is_guessed, "{code:02x}: {scans:?}"),
                }
            }
        }
    }

    #[test]
    fn huffman_tables_that_no_code_has_are_refused_where_they_are_used() {
        let of = |table: Vec<u8>| is_refused(&[table, frame(0xc0), scan_of(SEQUENTIAL)]);
        assert!(!of(table(0, &[1, 1, 1], 15)));
        for bogus in [&[2][..], &[0, 4], &[1, 2], &[3]] {
            assert!(of(table(0, bogus, 0)), "{bogus:?}");
            assert!(of(table(0x10, bogus, 0)), "{bogus:?}");
            assert!(!of(table(1, bogus, 0)), "no scan uses it");
        }
        assert!(of(table(0, &[1], 16)), "a difference of 16 bits");
        assert!(!of(table(0x10, &[1], 0xff)));
        assert!(!is_refused(&[table(0, &[1], 16), frame(0xc3), scan_of([1, 0, 0])]));
        assert!(is_refused(&[table(0, &[1], 17), frame(0xc3), scan_of([1, 0, 0])]));
        // Refinements of differences have no codes.
        let scans = [scan_of([0, 0, 0x10]), scan_of([1, 63, 0])];
        assert!(!is_refused(&[table(0, &[2], 0), frame(0xc2), scans.concat()]));
        assert!(of(table(4, &[1], 0)) && of(table(0x20, &[1], 0)));
        assert!(of(segment(DHT, &[0; 16])) && of(segment(DHT, &[&[0, 1][..], &[0; 15]].concat())));
    }

    #[test]
    fn other_tables_have_their_lengths_and_values() {
        for (code, bytes, is_sound) in [
            (DQT, [&[0][..], &[1; 64]].concat(), true),
            (DQT, [&[0x13][..], &[1; 128]].concat(), true),
            (DQT, [&[4][..], &[1; 64]].concat(), false),
            (DQT, [&[0x10][..], &[1; 64]].concat(), false),
            (DQT, vec![0; 66], false),
            (DAC, vec![0, 0x10, 31, 5], true),
            (DAC, vec![0, 0x01], false),
            (DAC, vec![32, 0], false),
            (DAC, vec![0], false),
            (DRI, vec![0], false),
        ] {
            assert_eq!(is_refused(&[segment(code, &bytes), frame(0xc0)]), !is_sound, "{code:02x}: {bytes:?}");
        }
    }
}

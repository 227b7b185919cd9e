//! Writes npy files and npz archives into memory, as numpy does, and where their parts are.
#![allow(dead_code, reason = "each test binary uses a part of it")]

/// An npy file of version 1, 2 or 3 with any header and elements.
pub fn npy(version: u8, descr: &str, fortran_order: bool, shape: &[u64], elements: &[u8]) -> Vec<u8> {
    let extents: Vec<_> = shape.iter().map(u64::to_string).collect();
    let shape = extents.join(", ") + if shape.len() == 1 { "," } else { "" };
    let order = if fortran_order { "True" } else { "False" };
    let text = format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': ({shape}), }}");
    npy_of(version, &text, elements)
}

/// An npy file with any text as its header.
pub fn npy_of(version: u8, text: &str, elements: &[u8]) -> Vec<u8> {
    let mut out = b"\x93NUMPY".to_vec();
    out.extend([version, 0]);
    let head = if version == 1 { 10 } else { 12 };
    let encoded: Vec<u8> = if version == 3 {
        text.bytes().collect()
    } else {
        text.chars().map(|character| u8::try_from(u32::from(character)).expect("latin-1")).collect()
    };
    let length = (head + encoded.len() + 1).next_multiple_of(64) - head;
    match version {
        1 => out.extend(u16::try_from(length).expect("a short header").to_le_bytes()),
        _ => out.extend(u32::try_from(length).expect("a header").to_le_bytes()),
    }
    out.extend(&encoded);
    out.resize(head + length - 1, b' ');
    out.push(b'\n');
    out.extend(elements);
    out
}

/// A member of an archive.
#[derive(Clone)]
pub struct Member {
    pub name: String,
    pub method: u16,
    pub flags: u16,
    pub bytes: Vec<u8>,
}

impl Member {
    /// A stored member.
    pub fn stored(name: &str, bytes: Vec<u8>) -> Self {
        Self { name: name.to_owned(), method: 0, flags: if name.is_ascii() { 0 } else { 1 << 11 }, bytes }
    }
}

/// An archive of members, with the local extra field that numpy makes, and a comment.
///
/// `wide`: the directory has its values in Zip64 fields and records, as for archives beyond 4 GiB.
pub fn zip(members: &[Member], wide: bool, comment: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut directory = Vec::new();
    for member in members {
        let (local, bytes) = (out.len() as u64, member.bytes.len() as u64);
        let name = member.name.as_bytes();
        let checksum = crc32(&member.bytes);
        out.extend(b"PK\x03\x04");
        for number in [45, member.flags, member.method, 0, 33] {
            out.extend(number.to_le_bytes());
        }
        out.extend(checksum.to_le_bytes());
        out.extend([0xff; 8]);
        out.extend((name.len() as u16).to_le_bytes());
        out.extend(20_u16.to_le_bytes());
        out.extend(name);
        out.extend([1, 0, 16, 0]);
        out.extend(bytes.to_le_bytes());
        out.extend(bytes.to_le_bytes());
        out.extend(&member.bytes);

        directory.extend(b"PK\x01\x02");
        for number in [45, 45, member.flags, member.method, 0, 33] {
            directory.extend(number.to_le_bytes());
        }
        directory.extend(checksum.to_le_bytes());
        let narrow = |value: u64| if wide { u32::MAX } else { value as u32 }.to_le_bytes();
        directory.extend(narrow(bytes));
        directory.extend(narrow(bytes));
        directory.extend((name.len() as u16).to_le_bytes());
        directory.extend(if wide { 34_u16 } else { 0 }.to_le_bytes());
        directory.extend([0; 10]);
        directory.extend(narrow(local));
        directory.extend(name);
        if wide {
            // Another field comes first.
            directory.extend([0x55, 0x54, 2, 0, 7, 7, 1, 0, 24, 0]);
            for value in [bytes, bytes, local] {
                directory.extend(value.to_le_bytes());
            }
        }
    }
    let (start, count) = (out.len() as u64, members.len() as u64);
    let directory_bytes = directory.len() as u64;
    out.extend(directory);
    if wide {
        let record = out.len() as u64;
        out.extend(b"PK\x06\x06");
        out.extend(44_u64.to_le_bytes());
        out.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        for number in [count, count, directory_bytes, start] {
            out.extend(number.to_le_bytes());
        }
        out.extend(b"PK\x06\x07\0\0\0\0");
        out.extend(record.to_le_bytes());
        out.extend(1_u32.to_le_bytes());
    }
    out.extend(b"PK\x05\x06\0\0\0\0");
    let narrow = if wide { u16::MAX } else { count as u16 };
    out.extend(narrow.to_le_bytes());
    out.extend(narrow.to_le_bytes());
    out.extend(if wide { u32::MAX } else { directory_bytes as u32 }.to_le_bytes());
    out.extend(if wide { u32::MAX } else { start as u32 }.to_le_bytes());
    out.extend((comment.len() as u16).to_le_bytes());
    out.extend(comment);
    out
}

/// The checksum of zip, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let shifted = |word: u32| if word & 1 == 1 { word >> 1 ^ 0xedb8_8320 } else { word >> 1 };
    !bytes.iter().fold(!0, |word, byte| (0..8).fold(word ^ u32::from(*byte), |word, _| shifted(word)))
}

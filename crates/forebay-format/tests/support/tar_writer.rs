//! tar files, written by hand: headers of all three kinds, with nothing left to a library.

/// How long names are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ustar,
    Gnu,
    Pax,
}

/// Adds a member; `kind` is its type flag.
pub fn member(out: &mut Vec<u8>, kind: u8, name: &[u8], data: &[u8], posix: bool) {
    let mut header = [0; 512];
    let (prefix, name) = if name.len() > 100 && posix {
        let slash = name[..name.len().min(156)]
            .iter()
            .rposition(|byte| *byte == b'/')
            .expect("a name that can be cut");
        (&name[..slash], &name[slash + 1..])
    } else {
        (&b""[..], &name[..name.len().min(100)])
    };
    header[..name.len()].copy_from_slice(name);
    header[100..108].copy_from_slice(b"0000644\0");
    header[124..136].copy_from_slice(format!("{:011o}\0", data.len()).as_bytes());
    header[136..148].copy_from_slice(b"00000000000\0");
    header[156] = kind;
    header[257..265].copy_from_slice(if posix { b"ustar\x0000" } else { b"ustar  \0" });
    header[345..345 + prefix.len()].copy_from_slice(prefix);
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out.extend(header);
    out.extend(data);
    out.resize(out.len().next_multiple_of(512), 0);
}

/// A pax record; its length counts itself.
pub fn record(key: &str, value: &str) -> Vec<u8> {
    let rest = format!(" {key}={value}\n");
    let mut length = rest.len();
    while length != rest.len() + length.to_string().len() {
        length = rest.len() + length.to_string().len();
    }
    format!("{length}{rest}").into_bytes()
}

/// A file of these members, with its end.
pub fn archive(kind: Kind, members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, data) in members {
        match kind {
            Kind::Gnu if name.len() > 100 => {
                let text = [name.as_bytes(), b"\0"].concat();
                member(&mut out, b'L', b"././@LongLink", &text, false);
            }
            Kind::Ustar | Kind::Gnu => {}
            Kind::Pax => {
                let size = record("size", &data.len().to_string());
                let records = [record("mtime", "1700000000.25"), record("path", name), size].concat();
                member(&mut out, b'x', b"PaxHeaders/x", &records, true);
            }
        }
        let short = if kind == Kind::Pax { &name[name.len().saturating_sub(50)..] } else { name };
        member(&mut out, b'0', short.as_bytes(), data, kind != Kind::Gnu);
    }
    out.resize((out.len() + 1024).next_multiple_of(10240), 0);
    out
}

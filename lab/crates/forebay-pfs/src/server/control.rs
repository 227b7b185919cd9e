//! The protocol of the control socket: one JSON object per line, in both directions.
//!
//! docs/pfs.md lists requests and answers. Every answer has `ok`; if it is false, `error` holds the
//! message, with a hint as its last line. The socket's mode (0600) and the user id of the peer
//! decide who may connect.
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::EmulatorError;
use crate::instance::Emulator;
use crate::records::faults::Fault;

/// Longest request \[B\]: a path has at most 4096 bytes, or six times that if all are escaped.
const REQUEST_BYTES: u64 = 64 * 1024;

/// One request.
#[derive(Debug, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
enum ControlRequest {
    Ping,
    Mount { mount: PathBuf },
    Unmount { mount: PathBuf },
    Stats,
    Prometheus,
    Reset,
    DropCaches { mount: PathBuf },
    Fault(Fault),
    Events { since: u64 },
    End,
}

/// What the server does after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Continue,
    /// The server ends, then sends the answer.
    End,
}

/// Whether the peer is a process of our user or of root.
pub(crate) fn is_allowed(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid == rustix::process::geteuid() || peer.uid.is_root())
}

fn parse(line: &str) -> Result<ControlRequest, EmulatorError> {
    serde_json::from_str(line)
        .map_err(|error| EmulatorError::Wrong(format!("request {}: {error}", line.trim_end())))
}

/// Executes one request.
fn answer(emulator: &Emulator, line: &str) -> Result<(Value, After), EmulatorError> {
    let mut after = After::Continue;
    let answer = match parse(line)? {
        ControlRequest::Ping => {
            let configuration = emulator.configuration();
            let mounts = emulator.mounts();
            json!({
                "pid": std::process::id(),
                "backing": configuration.backing.to_string_lossy(),
                "mounts": mounts.iter().map(|mount| mount.to_string_lossy()).collect::<Vec<_>>(),
                "spec": configuration.spec,
                "time_scale": configuration.time_scale,
                "seed": configuration.seed,
            })
        }
        ControlRequest::Mount { mount } => {
            emulator.mount(&mount)?;
            json!({})
        }
        ControlRequest::Unmount { mount } => {
            let last = emulator.unmount(&mount)?;
            if last {
                after = After::End;
            }
            json!({"last": last})
        }
        ControlRequest::Stats => emulator.stats(),
        ControlRequest::Prometheus => json!({"text": emulator.prometheus()}),
        ControlRequest::Reset => {
            emulator.reset();
            json!({})
        }
        ControlRequest::DropCaches { mount } => json!({"pages_dropped_files": emulator.drop_caches(&mount)?}),
        ControlRequest::Fault(fault) => {
            emulator.fault(&fault)?;
            json!({})
        }
        ControlRequest::Events { since } => {
            let (events, next) = emulator.events(since);
            json!({"events": events, "next": next})
        }
        ControlRequest::End => {
            after = After::End;
            json!({})
        }
    };
    Ok((answer, after))
}

/// Answers all requests of one connection. `end` ends the server and returns its result.
pub(crate) fn serve_connection(
    emulator: &Emulator,
    stream: &UnixStream,
    end: impl Fn() -> Result<(), String>,
) {
    let mut reader = BufReader::new(stream);
    let mut out = stream;
    loop {
        let mut line = String::new();
        match reader.by_ref().take(REQUEST_BYTES).read_line(&mut line) {
            Ok(count) if count > 0 && line.ends_with('\n') => {}
            // The peer has closed the connection, or exceeds the length of a request.
            _ => return,
        }
        let (value, after) = match answer(emulator, &line) {
            Ok((Value::Object(mut fields), after)) => {
                fields.insert("ok".to_owned(), json!(true));
                (Value::Object(fields), after)
            }
            Ok((other, after)) => (json!({"ok": true, "answer": other}), after),
            Err(error) => (json!({"ok": false, "error": error.text()}), After::Continue),
        };
        let ended = if after == After::End { end() } else { Ok(()) };
        let value = ended.map_or_else(|error| json!({"ok": false, "error": error}), |()| value);
        let mut line = value.to_string();
        line.push('\n');
        if out.write_all(line.as_bytes()).is_err() || after == After::End {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed_strictly() {
        assert!(matches!(parse(r#"{"command":"ping"}"#), Ok(ControlRequest::Ping)));
        assert!(matches!(
            parse(r#"{"command":"fault","kind":"clear"}"#),
            Ok(ControlRequest::Fault(Fault::Clear))
        ));
        for bad in [
            r#"{"command":"dance"}"#,
            r#"{"command":"events"}"#,
            "[]",
            "",
            r#"{"command":"drop_caches","moun":"x"}"#,
            r#"{"command":"fault","kind":"stall","server":1,"for_seconds":1.0,"extra":1}"#,
        ] {
            assert!(parse(bad).is_err(), "{bad} was accepted");
        }
    }
}

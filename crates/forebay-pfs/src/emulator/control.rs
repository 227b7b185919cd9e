//! The control socket: one JSON object a line in, one a line out.
//!
//! Requests and answers are listed in docs/pfs.md. Every answer has `ok`; where it is false, `error` says why, with a hint as its last line.
//! Who may connect is decided by the socket's mode (0600) and once more by the caller's user id.
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::emulator::error::EmulatorError;
use crate::emulator::running::Emulator;
use crate::faults::Fault;

/// Longest request: a path has at most 4096 bytes, six times that when all of it is escaped.
const REQUEST_BYTES: u64 = 64 * 1024;

/// One request.
#[derive(Debug, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    Ping,
    Mount { mount: PathBuf },
    Unmount { mount: PathBuf },
    Stats,
    Prometheus,
    Reset,
    DropCaches { mount: PathBuf },
    Events { since: u64 },
    End,
}

/// What the server does after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Goes on.
    Nothing,
    /// Ends; the answer is sent once that is done.
    End,
}

/// Whether the process on the other side belongs to us or to root.
pub(crate) fn is_allowed(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid == rustix::process::geteuid() || peer.uid.is_root())
}

fn parse(line: &str) -> Result<Result<Request, Fault>, EmulatorError> {
    let wrong =
        |error: serde_json::Error| EmulatorError::Wrong(format!("request {}: {error}", line.trim_end()));
    let mut value: Value = serde_json::from_str(line).map_err(wrong)?;
    if value["command"] == "fault" {
        if let Some(fields) = value.as_object_mut() {
            fields.remove("command");
        }
        return serde_json::from_value(value).map(Err).map_err(wrong);
    }
    serde_json::from_value(value).map(Ok).map_err(wrong)
}

/// Does what one line asks for.
fn answer(emulator: &Emulator, line: &str) -> Result<(Value, After), EmulatorError> {
    let request = match parse(line)? {
        Err(fault) => {
            emulator.fault(&fault)?;
            return Ok((json!({}), After::Nothing));
        }
        Ok(request) => request,
    };
    let answer = match request {
        Request::Ping => {
            let configuration = emulator.configuration();
            json!({
                "pid": std::process::id(),
                "backing": configuration.backing.to_string_lossy(),
                "mounts": emulator.mounts().iter().map(|mount| mount.to_string_lossy().into_owned()).collect::<Vec<_>>(),
                "spec": configuration.spec,
                "time_scale": configuration.time_scale,
                "seed": configuration.seed,
            })
        }
        Request::Mount { mount } => {
            emulator.mount(&mount)?;
            json!({})
        }
        Request::Unmount { mount } => {
            let last = emulator.unmount(&mount)?;
            return Ok((json!({"last": last}), if last { After::End } else { After::Nothing }));
        }
        Request::Stats => emulator.stats(),
        Request::Prometheus => json!({"text": emulator.prometheus()}),
        Request::Reset => {
            emulator.reset();
            json!({})
        }
        Request::DropCaches { mount } => json!({"pages_dropped_files": emulator.drop_caches(&mount)?}),
        Request::Events { since } => {
            let (events, next) = emulator.events(since);
            json!({"events": events, "next": next})
        }
        Request::End => return Ok((json!({}), After::End)),
    };
    Ok((answer, After::Nothing))
}

/// Answers all requests of one connection. `end` ends the server and returns once it has; what it returns is its error.
pub(crate) fn converse(emulator: &Emulator, stream: &UnixStream, end: impl Fn() -> Result<(), String>) {
    let mut reader = BufReader::new(stream);
    let mut out = stream;
    loop {
        let mut line = String::new();
        match reader.by_ref().take(REQUEST_BYTES).read_line(&mut line) {
            Ok(count) if count > 0 && line.ends_with('\n') => {}
            // The other side has gone, or sends no lines.
            _ => return,
        }
        let (value, after) = match answer(emulator, &line) {
            Ok((Value::Object(mut fields), after)) => {
                fields.insert("ok".to_owned(), json!(true));
                (Value::Object(fields), after)
            }
            Ok((other, after)) => (json!({"ok": true, "answer": other}), after),
            Err(error) => (json!({"ok": false, "error": error.text()}), After::Nothing),
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
    fn requests_are_read_strictly() {
        assert!(matches!(parse(r#"{"command":"ping"}"#), Ok(Ok(Request::Ping))));
        assert!(matches!(parse(r#"{"command":"fault","kind":"clear"}"#), Ok(Err(Fault::Clear))));
        for bad in [
            r#"{"command":"dance"}"#,
            r#"{"command":"events"}"#,
            "[]",
            "",
            r#"{"command":"drop_caches","moun":"x"}"#,
        ] {
            assert!(parse(bad).is_err(), "{bad} was taken");
        }
    }
}

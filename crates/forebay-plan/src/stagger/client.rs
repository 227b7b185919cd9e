//! The client of a node's leader for read tokens: it requests one when a reader of its node wants
//! to read, opens the gate when the token arrives, and returns it when no reader is inside.
//!
//! ```text
//! kind (1 byte): 1 ask | 2 grant | 3 give back | 4 set | a number (8): groups, or bytes read
//! ```
//!
//! The server ([`TokenServer`]) is the leader of the node with the least rank. It keeps serving
//! while its own node is idle. A node that leaves returns its token. When the server leaves, all
//! nodes read at any time.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::stagger::TokenHost;
use crate::stagger::server::TokenServer;

/// The node whose leader runs the server.
const SERVER: usize = 0;

const ASK: u8 = 1;
const GRANT: u8 = 2;
const GIVE_BACK: u8 = 3;
const SET: u8 = 4;

/// Whether this node has a token.
const NONE: u8 = 0;
const ASKED: u8 = 1;
const HELD: u8 = 2;

/// See the module header.
pub struct TokenClient {
    /// Index of the node.
    node: usize,
    token: AtomicU8,
    server: Option<Mutex<TokenServer>>,
}

impl TokenClient {
    /// The client of a node in a job of `nodes` nodes in `groups` groups; 0: to be measured.
    #[must_use]
    pub fn new(node: usize, nodes: usize, groups: u32) -> Self {
        let server = || Mutex::new(TokenServer::new(nodes, number_of_groups(u64::from(groups))));
        Self { node, token: AtomicU8::new(NONE), server: (node == SERVER).then(server) }
    }

    /// Applies an action to the server, then grants the free tokens.
    fn serve(&self, host: &dyn TokenHost, act: impl FnOnce(&mut TokenServer)) {
        let Some(server) = &self.server else { return };
        let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
        act(&mut server);
        loop {
            let grants = server.grants();
            if grants.is_empty() {
                return;
            }
            let groups = server.groups().0 as u64;
            for node in grants {
                if node == self.node {
                    self.take_token(groups, host);
                } else if !host.send(node, message(GRANT, groups)) {
                    server.forget(node);
                }
            }
        }
    }

    fn take_token(&self, groups: u64, host: &dyn TokenHost) {
        // Open first: a token that is held while the gate is closed is returned.
        host.open(groups);
        self.token.store(HELD, Ordering::Release);
        host.wake();
    }

    /// Sends a message to the server, on this node or on another one.
    fn to_server(&self, kind: u8, number: u64, host: &dyn TokenHost, act: impl FnOnce(&mut TokenServer)) {
        if self.server.is_some() {
            self.serve(host, act);
        } else if !host.send(SERVER, message(kind, number)) {
            host.free();
        }
    }

    /// Takes a message from another node.
    pub fn receive(&self, from: usize, message: &[u8], host: &dyn TokenHost) {
        let Some((kind, number)) = message.split_first() else { return };
        let Ok(number) = number.try_into().map(u64::from_le_bytes) else { return };
        match *kind {
            ASK => self.serve(host, |server| server.ask(from)),
            GIVE_BACK => self.serve(host, |server| server.give_back(from, number, host.now_ns())),
            SET => self.serve(host, |server| server.set(number_of_groups(number))),
            GRANT if from == SERVER => self.take_token(number, host),
            _ => {}
        }
    }

    /// Checks for nodes that are gone; called while no message arrives.
    pub fn check_nodes(&self, host: &dyn TokenHost) {
        if self.server.is_none() && host.is_gone(SERVER) {
            host.free();
        }
        self.serve(host, |server| {
            let gone = |node: &usize| *node != self.node && host.is_gone(*node);
            for node in server.holding().iter().copied().filter(gone).collect::<Vec<_>>() {
                server.forget(node);
            }
        });
    }

    /// Whether there is something for [`attend`](Self::attend) to do.
    pub fn has_work(&self, host: &dyn TokenHost) -> bool {
        host.is_regrouped()
            || match self.token.load(Ordering::Acquire) {
                NONE => host.is_asked(),
                HELD => host.is_left(),
                _ => false,
            }
    }

    /// Acts upon the state of the gate.
    pub fn attend(&self, host: &dyn TokenHost) {
        if let Some(groups) = host.take_groups() {
            self.to_server(SET, groups, host, |server| server.set(number_of_groups(groups)));
        }
        match self.token.load(Ordering::Acquire) {
            NONE if host.is_asked() => {
                self.token.store(ASKED, Ordering::Release);
                self.to_server(ASK, 0, host, |server| server.ask(self.node));
            }
            HELD if host.is_left() => {
                self.token.store(NONE, Ordering::Release);
                let bytes = host.take_read_bytes();
                let now_ns = host.now_ns();
                self.to_server(GIVE_BACK, bytes, host, |server| server.give_back(self.node, bytes, now_ns));
            }
            _ => {}
        }
    }
}

/// Encodes a number of groups in a message; 0: to be measured.
fn number_of_groups(number: u64) -> Option<usize> {
    (number > 0).then_some(number as usize)
}

fn message(kind: u8, number: u64) -> Vec<u8> {
    let mut message = vec![kind];
    message.extend(number.to_le_bytes());
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::atomic::AtomicBool;

    /// A node without links: messages are collected.
    #[derive(Default)]
    struct Node {
        asked: AtomicBool,
        open: AtomicBool,
        freed: AtomicBool,
        gone: Option<usize>,
        sent: Mutex<BTreeMap<usize, Vec<Vec<u8>>>>,
    }

    impl Node {
        fn sent_to(&self, node: usize) -> Vec<Vec<u8>> {
            self.sent.lock().unwrap().remove(&node).unwrap_or_default()
        }
    }

    impl TokenHost for Node {
        fn is_asked(&self) -> bool {
            self.asked.load(Ordering::Relaxed)
        }

        fn is_left(&self) -> bool {
            !self.open.load(Ordering::Relaxed)
        }

        fn open(&self, _groups: u64) {
            self.open.store(true, Ordering::Relaxed);
        }

        fn free(&self) {
            self.freed.store(true, Ordering::Relaxed);
        }

        fn wake(&self) {}

        fn take_read_bytes(&self) -> u64 {
            77
        }

        fn is_regrouped(&self) -> bool {
            false
        }

        fn take_groups(&self) -> Option<u64> {
            None
        }

        fn send(&self, node: usize, message: Vec<u8>) -> bool {
            if self.gone == Some(node) {
                return false;
            }
            self.sent.lock().unwrap().entry(node).or_default().push(message);
            true
        }

        fn is_gone(&self, node: usize) -> bool {
            self.gone == Some(node)
        }

        fn now_ns(&self) -> u64 {
            1
        }
    }

    #[test]
    fn a_token_goes_to_the_node_that_asks_and_back_when_its_gate_is_left() {
        let (server, client) = (TokenClient::new(0, 2, 2), TokenClient::new(1, 2, 2));
        let (here, there) = (Node::default(), Node::default());
        assert!(!client.has_work(&there));
        there.asked.store(true, Ordering::Relaxed);
        assert!(client.has_work(&there));
        client.attend(&there);
        let asks = there.sent_to(SERVER);
        assert_eq!(asks, [message(ASK, 0)]);
        server.receive(1, &asks[0], &here);
        let grants = here.sent_to(1);
        assert_eq!(grants, [message(GRANT, 2)]);
        // The server's own node waits until the token is returned.
        here.asked.store(true, Ordering::Relaxed);
        server.attend(&here);
        assert!(!here.open.load(Ordering::Relaxed));
        client.receive(SERVER, &grants[0], &there);
        assert!(there.open.load(Ordering::Relaxed) && !client.has_work(&there));
        there.open.store(false, Ordering::Relaxed);
        client.attend(&there);
        let returns = there.sent_to(SERVER);
        assert_eq!(returns, [message(GIVE_BACK, 77)]);
        server.receive(1, &returns[0], &here);
        assert!(here.open.load(Ordering::Relaxed));
    }

    #[test]
    fn the_token_of_a_node_that_left_is_granted_again_and_without_a_server_all_read() {
        let server = TokenClient::new(0, 2, 2);
        let mut here = Node::default();
        server.receive(1, &message(ASK, 0), &here);
        here.asked.store(true, Ordering::Relaxed);
        server.attend(&here);
        assert!(!here.open.load(Ordering::Relaxed));
        here.gone = Some(1);
        server.check_nodes(&here);
        assert!(here.open.load(Ordering::Relaxed));
        let client = TokenClient::new(1, 2, 2);
        let there = Node { gone: Some(SERVER), ..Node::default() };
        client.check_nodes(&there);
        assert!(there.freed.load(Ordering::Relaxed));
    }

    #[test]
    fn what_is_no_message_is_ignored() {
        let client = TokenClient::new(1, 2, 2);
        let there = Node::default();
        for wrong in [&[][..], &[GRANT], &[GRANT, 1, 2], &message(9, 1)] {
            client.receive(SERVER, wrong, &there);
        }
        // Only the server grants tokens.
        client.receive(2, &message(GRANT, 1), &there);
        assert!(!there.open.load(Ordering::Relaxed));
    }
}

//! The handoff of LMDBIO-LMM-DM: one seeker at a time, and a cursor that goes from root to root.
//!
//! A step is cut into *legs*: runs of ranks that follow each other in the job and share a node. The root of the node walks
//! its leg from where the cursor stands, and tells the cursor to the root of the next leg, over the links between the leaders. So every
//! record is passed over once in the whole job.
//!
//! ```text
//! step (8 bytes) | leg (4) | cursor (forebay_format::Dataset::export_cursor)
//! ```
//!
//! Where a cursor stands follows from step and leg alone, so it does not matter which session it was told in, and a cursor for a
//! leg that is done is dropped. Nobody depends on another node's pace: a root whose ranks have waited for it for a while goes
//! on by itself, from where it stood last, over the records in between; so does one whose rank is no leader, and a leg
//! whose node said goodbye is left out. That is slow, and right.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::options::Options;
use crate::mesh::{Channel, LinkError, Links};
use crate::pipeline::session::Session;
use crate::shm::block_state::is_behind;

/// How long a root waits for the cursor while its ranks wait for samples: many times what a leg takes.
const GRACE: Duration = Duration::from_secs(2);
/// Cursors that are kept for later legs; a few are on their way when nodes go on by themselves.
const MAX_KEPT: usize = 64;
/// Bytes in front of the cursor.
const HEAD_BYTES: usize = 12;

/// Ranks that follow each other in the job and share a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leg {
    /// Place of the node.
    node: usize,
    /// Those ranks.
    ranks: Range<u32>,
}

/// A root's side of it.
pub(super) struct Handoff {
    links: Option<Arc<Links>>,
    me: usize,
    legs: Vec<Leg>,
    kept: BTreeMap<(u64, u32), Vec<u8>>,
    /// Cursors come when they are needed: it makes sense to wait for them.
    expects: bool,
}

impl Handoff {
    pub(super) fn new(options: &Options, links: Option<&Arc<Links>>) -> Self {
        let (me, legs) = match links {
            Some(links) => {
                let nodes = &links.facts().0;
                let node_of = |rank: u32| nodes.iter().position(|node| node.ranks.contains(&rank));
                (links.me(), legs((0..options.size).map(|rank| node_of(rank).unwrap_or(usize::MAX))))
            }
            // Alone, with the legs of the own ranks only.
            None => {
                (0, legs((0..options.size).map(|rank| usize::from(!options.local_ranks.contains(&rank)))))
            }
        };
        Self { links: links.cloned(), me, legs, kept: BTreeMap::new(), expects: true }
    }

    /// The legs of this node in a step: number and ranks.
    pub(super) fn own_legs(&self) -> Vec<(u32, Range<u32>)> {
        let own = (0..).zip(&self.legs).filter(|(_, leg)| leg.node == self.me);
        own.map(|(number, leg)| (number, leg.ranks.clone())).collect()
    }

    /// Waits for the cursor of a leg; `None` where the root goes on from where it stood last.
    pub(super) fn wait(&mut self, session: &Session, step: u64, leg: u32) -> Option<Vec<u8>> {
        let links = self.links.clone()?;
        let before = (leg as usize + self.legs.len() - 1) % self.legs.len();
        if self.legs[before].node == self.me || (step, leg) == (session.start, 0) {
            return None;
        }
        let begun = Instant::now();
        let number = session.number;
        let starves = || {
            let has_taken = |word| step == session.start || is_behind(word, number, step - 1);
            begun.elapsed() > GRACE && session.context.active().any(|(_, slot)| has_taken(&slot.taken))
        };
        self.kept = self.kept.split_off(&(step, leg));
        loop {
            if let Some(cursor) = self.kept.remove(&(step, leg)) {
                self.expects = true;
                return Some(cursor);
            }
            let stop = || !self.expects || session.is_stopped() || starves();
            match links.receive(Channel::Cursor, None, &stop) {
                Ok(Some((_, told))) => self.keep(&told, (step, leg)),
                Ok(None) => {
                    self.expects = false;
                    return None;
                }
                // Nobody is left who could tell; a loss is told to the ranks elsewhere.
                Err(_) => {
                    self.links = None;
                    return None;
                }
            }
        }
    }

    fn keep(&mut self, told: &[u8], now: (u64, u32)) {
        let Some((head, cursor)) = told.split_first_chunk::<HEAD_BYTES>() else { return };
        let (step, leg) = head.split_at(8);
        let key =
            (step.try_into().map_or(0, u64::from_le_bytes), leg.try_into().map_or(0, u32::from_le_bytes));
        if key >= now && self.kept.len() < MAX_KEPT {
            self.kept.insert(key, cursor.to_vec());
        }
    }

    /// Tells the cursor behind a leg to the root of the next one; returns the bytes of the cursor that went out.
    pub(super) fn pass_on(&mut self, step: u64, leg: u32, cursor: impl FnOnce() -> Vec<u8>) -> u64 {
        let Some(links) = &self.links else { return 0 };
        let mut told: Option<Arc<[u8]>> = None;
        let mut cursor = Some(cursor);
        let mut bytes = 0;
        for ahead in 1..=self.legs.len() {
            let next = leg as usize + ahead;
            let (step, leg) = (step + (next / self.legs.len()) as u64, next % self.legs.len());
            let node = self.legs[leg].node;
            if node == self.me {
                return 0;
            }
            if let Some(cursor) = cursor.take() {
                let cursor = cursor();
                bytes = cursor.len() as u64;
                told = Some([vec![0; HEAD_BYTES], cursor].concat().into());
            }
            let mut message = told.as_deref().unwrap_or_default().to_vec();
            message[..8].copy_from_slice(&step.to_le_bytes());
            message[8..HEAD_BYTES].copy_from_slice(&(leg as u32).to_le_bytes());
            match links.send(node, Channel::Cursor, message) {
                Ok(()) => return bytes,
                Err(LinkError::Gone { .. }) => {}
                Err(_) => {
                    self.links = None;
                    return 0;
                }
            }
        }
        0
    }
}

/// The legs of a step, from the node of every rank of the job.
fn legs(nodes: impl Iterator<Item = usize>) -> Vec<Leg> {
    let mut legs: Vec<Leg> = Vec::new();
    for (rank, node) in (0..).zip(nodes) {
        match legs.last_mut().filter(|leg| leg.node == node) {
            Some(leg) => leg.ranks.end = rank + 1,
            None => legs.push(Leg { node, ranks: rank..rank + 1 }),
        }
    }
    legs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legs_are_the_runs_of_ranks_that_share_a_node() {
        let cut = |nodes: &[usize]| -> Vec<(usize, Range<u32>)> {
            legs(nodes.iter().copied()).into_iter().map(|leg| (leg.node, leg.ranks)).collect()
        };
        assert_eq!(cut(&[0, 0, 1, 1, 1, 2]), [(0, 0..2), (1, 2..5), (2, 5..6)]);
        assert_eq!(cut(&[0, 1, 0, 1]), [(0, 0..1), (1, 1..2), (0, 2..3), (1, 3..4)]);
        assert_eq!(cut(&[0]), [(0, 0..1)]);
    }
}

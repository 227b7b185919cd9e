//! The first phase of a loader: the ranks of the node agree, and so do the leaders of all nodes.
//!
//! The ranks meet and compare their options. The leader links to the other nodes and decides
//! (`leader_setup.rs`). All ranks get its decisions, and the memory that comes with them, once all
//! nodes have decided; or none gets any.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use forebay_host::failpoint;

use crate::config::options::{Options, compare_hellos, rank_facts};
use crate::config::rank_facts::RankFacts;
use crate::config::strategies::Strategies;
use crate::dataset::IndexedDataset;
use crate::error::Error;
use crate::host::Host;
use crate::host::offload::offload;
use crate::loader::creation::{CancellableHost, Creation};
use crate::loader::leader_setup::{LeaderOwn, LeaderState, Reply, lead};
use crate::rendezvous::{self, Dead, Membership, NodeSpec};

/// What a loader is made from.
pub(crate) struct Making<'a> {
    pub(crate) source: &'a Arc<IndexedDataset>,
    pub(crate) options: &'a Options,
    pub(crate) strategies: &'a Strategies,
    pub(crate) creation: &'a Creation,
    pub(crate) caller: &'a dyn Host,
}

impl Making<'_> {
    /// How long the ranks wait for each other.
    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_secs(self.options.timeout_s)
    }

    /// Calls what storage may block, on another thread.
    pub(crate) fn offload<T: Send + 'static>(
        &self,
        caller: &dyn Host,
        call: impl FnOnce(&dyn Host) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let what = format!("loader \"{}\" is made", self.options.name);
        offload(caller, &what, self.options.timeout_s, call)
    }
}

/// See the module header.
pub(crate) struct Agreed {
    pub(crate) membership: Membership,
    /// What the leader decided.
    pub(crate) reply: Reply,
    /// The memory that comes with it.
    pub(crate) fds: Vec<OwnedFd>,
    /// What a leader keeps to itself; nothing in other ranks.
    pub(crate) own: LeaderOwn,
}

impl Agreed {
    /// Waits for the other ranks and nodes.
    pub(crate) fn reach(making: &Making<'_>) -> Result<Self, Error> {
        let &Making { source, options, strategies, creation, caller } = making;
        strategies.check(options)?;
        failpoint::check()
            .map_err(|message| Error::Options { message, hint: "it is for tests only; unset it".into() })?;
        let spec = NodeSpec {
            job: options.job.clone(),
            node: options.node.clone(),
            name: options.name.clone(),
            rank: options.rank,
            local_rank: options.local_rank,
            local_ranks: options.local_ranks.clone(),
            launcher: options.launcher.clone(),
            deadline: making.deadline(),
        };
        let (mut own, mut failure) = (LeaderOwn::default(), None);
        let lead = |hellos: &[Vec<u8>], dead: Dead<'_>| {
            let cancellable = CancellableHost::new(caller, creation, dead);
            match lead_with(making, hellos, &cancellable) {
                Ok(LeaderState { reply, fds, own: kept }) => {
                    own = kept;
                    Ok((reply, fds))
                }
                Err(error) => {
                    let error = cancellable.reason(error);
                    let text = error.to_wire();
                    failure = Some(error);
                    Err(text)
                }
            }
        };
        let hello = options.hello(source.dataset().identity(), &RankFacts::of_this_process());
        let joined = rendezvous::join(&spec, &hello, lead, &mut WaitingHost(caller));
        // The leader raises its own error, not the rejection that it sent.
        if let Some(error) = failure {
            return Err(error);
        }
        let mut membership = joined?;
        let reply = serde_json::from_slice(&membership.reply)
            .map_err(|error| Error::local(format!("cannot parse the leader's decisions: {error}")))?;
        let fds = std::mem::take(&mut membership.fds);
        Ok(Self { membership, reply, fds, own })
    }
}

/// The leader's part, once it has the hellos of all ranks.
fn lead_with(
    making: &Making<'_>,
    hellos: &[Vec<u8>],
    caller: &CancellableHost<'_>,
) -> Result<LeaderState, Error> {
    let &Making { options, creation, .. } = making;
    compare_hellos(hellos, &options.local_ranks).map_err(Error::disagree)?;
    creation.link(options, making.deadline(), caller)?;
    let state = {
        let ranks = rank_facts(hellos);
        let source = Arc::clone(making.source);
        let (options, strategies) = (options.clone(), making.strategies.clone());
        let links = creation.links().cloned();
        making.offload(caller, move |caller| {
            lead(&source, &options, &strategies, &ranks, links.as_deref(), caller)
        })?
    };
    creation.agree(options, caller)?;
    Ok(state)
}

/// The caller, for the waits of the rendezvous.
struct WaitingHost<'a>(&'a dyn Host);

impl rendezvous::Waiting for WaitingHost<'_> {
    fn go_on(&mut self) -> bool {
        !self.0.interrupted()
    }

    fn warn(&mut self, text: &str) {
        self.0.warn(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loader::one_rank::OneRank;

    #[test]
    fn a_rank_that_is_alone_gets_the_decisions_and_the_memory_for_them() {
        let rank = OneRank::new(|_| ());
        let agreed = rank.agreed().unwrap();
        assert_eq!((agreed.reply.cores.len(), agreed.fds.len()), (1, 2), "region and index");
        assert_eq!(agreed.reply.findings.data.samples, OneRank::SAMPLES);
        assert!(agreed.own.loan.is_some() && agreed.own.index.is_some());
        assert!(agreed.own.files.is_some() && agreed.own.server.is_none());
        assert_eq!(agreed.membership.peers().len(), 1);
    }

    #[test]
    fn what_the_leader_cannot_decide_is_its_own_error() {
        let small = OneRank::new(|values| values["node_memory_bytes"] = 1.into());
        let error = small.agreed().err().unwrap();
        assert!(matches!(error, Error::Options { .. }) && error.to_string().contains("the least"), "{error}");
        let walk = OneRank::new(|values| {
            values["strategy"] = serde_json::json!({"locate": "cursor", "access": "mmap"});
        });
        let error = walk.agreed().err().unwrap();
        assert!(error.to_string().contains("locator"), "{error}");
    }
}

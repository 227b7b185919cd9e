//! The shares that a store daemon keeps: who uses them, and which are dropped. Knows no memory and
//! no sockets.
//!
//! - Of the unused shares of a dataset, only the newest is kept.
//! - A share of files that have changed since is dropped once nobody uses it.
//! - Where room is needed, unused shares are dropped, the least recently used first.
//!
//! Promises: a share that is used is never dropped, and what is kept does not exceed the limit.

use std::collections::BTreeSet;

use forebay_host::ClientId;

use crate::store::daemon::messages::SharedDataset;

/// A share that is kept; `M` is its memory.
#[derive(Debug)]
pub(super) struct KeptShare<M> {
    pub(super) dataset: SharedDataset,
    pub(super) bytes: u64,
    pub(super) memory: M,
    pub(super) users: BTreeSet<ClientId>,
    /// Order of the last use.
    used: u64,
    /// Order in which shares came.
    came: u64,
}

/// See the module header.
#[derive(Debug)]
pub(super) struct KeptShares<M> {
    limit_bytes: u64,
    shares: Vec<KeptShare<M>>,
    /// Counts events.
    now: u64,
}

impl<M> KeptShares<M> {
    pub(super) fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, shares: Vec::new(), now: 0 }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &KeptShare<M>> {
        self.shares.iter()
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.shares.iter().map(|share| share.bytes).sum()
    }

    /// Memory of the shares that nobody uses \[bytes\].
    pub(super) fn unused_bytes(&self) -> u64 {
        self.shares.iter().filter(|share| share.users.is_empty()).map(|share| share.bytes).sum()
    }

    /// Whether any share is used.
    pub(super) fn is_used(&self) -> bool {
        self.shares.iter().any(|share| !share.users.is_empty())
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// The newest share of a dataset, which `client` uses from now on instead of any other.
    pub(super) fn find(&mut self, dataset: &SharedDataset, client: ClientId) -> Option<&KeptShare<M>> {
        let of_version = |share: &&KeptShare<M>| share.dataset.version == dataset.version;
        let newest = self.shares.iter().filter(of_version).map(|share| share.came).max();
        // Before it releases another one, which might drop this one.
        let used = self.tick();
        if let Some(share) = self.shares.iter_mut().find(|share| Some(share.came) == newest) {
            share.used = used;
            share.users.insert(client);
        }
        self.release_but(newest, client, false);
        self.shares.retain(|share| !(share.users.is_empty() && share.dataset.is_other_state_of(dataset)));
        self.shares.iter().find(|share| Some(share.came) == newest)
    }

    /// Keeps a share, which `client` uses from now on instead of any other; in case of error, the
    /// room that there is \[bytes\].
    pub(super) fn keep(
        &mut self,
        dataset: SharedDataset,
        bytes: u64,
        memory: M,
        client: ClientId,
    ) -> Result<(), u64> {
        let room = self.limit_bytes.saturating_sub(self.held_bytes() - self.unused_bytes());
        let own = self.shares.iter().filter(|share| share.users.iter().eq([&client]));
        let room = room + own.map(|share| share.bytes).sum::<u64>();
        if bytes > room {
            return Err(room.min(self.limit_bytes));
        }
        self.release(client, false);
        let (used, came) = (self.tick(), self.tick());
        let users = BTreeSet::from([client]);
        self.shares.push(KeptShare { dataset, bytes, memory, users, used, came });
        self.drop_superseded();
        while self.held_bytes() > self.limit_bytes && self.drop_oldest().is_some() {}
        Ok(())
    }

    /// `client` uses its share no more; `drops` it if no other does. Returns what was freed
    /// \[bytes\].
    pub(super) fn release(&mut self, client: ClientId, drops: bool) -> u64 {
        self.release_but(None, client, drops)
    }

    /// The same, but for the share that came as number `stays`.
    fn release_but(&mut self, stays: Option<u64>, client: ClientId, drops: bool) -> u64 {
        let before = self.held_bytes();
        let used = self.tick();
        let mut is_dropped = Vec::with_capacity(self.shares.len());
        for share in &mut self.shares {
            let was_used = Some(share.came) != stays && share.users.remove(&client);
            if was_used {
                share.used = used;
            }
            is_dropped.push(was_used && drops && share.users.is_empty());
        }
        let mut is_dropped = is_dropped.into_iter();
        self.shares.retain(|_| !is_dropped.next().unwrap_or(false));
        self.drop_superseded();
        before - self.held_bytes()
    }

    /// Changes what is known of the share that `client` uses.
    pub(super) fn update(&mut self, client: ClientId, change: impl FnOnce(&mut M)) {
        if let Some(share) = self.shares.iter_mut().find(|share| share.users.contains(&client)) {
            change(&mut share.memory);
        }
    }

    /// Drops unused shares until `bytes` are freed, or none is left; returns what was freed
    /// \[bytes\].
    pub(super) fn make_room(&mut self, bytes: u64) -> u64 {
        let mut freed = 0;
        while freed < bytes
            && let Some(dropped) = self.drop_oldest()
        {
            freed += dropped;
        }
        freed
    }

    /// Drops the unused share whose last use is the longest ago.
    fn drop_oldest(&mut self) -> Option<u64> {
        let unused = self.shares.iter().enumerate().filter(|(_, share)| share.users.is_empty());
        let (place, _) = unused.min_by_key(|(_, share)| share.used)?;
        Some(self.shares.remove(place).bytes)
    }

    /// Drops unused shares for which there is a newer one.
    fn drop_superseded(&mut self) {
        let all: Vec<(SharedDataset, u64)> =
            self.shares.iter().map(|share| (share.dataset.clone(), share.came)).collect();
        self.shares.retain(|share| {
            let is_newer = |(other, came): &(SharedDataset, u64)| {
                let is_same = other.version == share.dataset.version;
                *came > share.came && (is_same || other.is_other_state_of(&share.dataset))
            };
            !share.users.is_empty() || !all.iter().any(is_newer)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn dataset(place: u8, version: u8) -> SharedDataset {
        let (place, state) = (place.to_string(), version.to_string());
        SharedDataset { version: format!("{place}.{version}"), place, state, path: String::new() }
    }

    fn kept(shares: &KeptShares<u32>) -> Vec<u32> {
        let mut kept: Vec<u32> = shares.iter().map(|share| share.memory).collect();
        kept.sort_unstable();
        kept
    }

    #[test]
    fn the_least_recently_used_share_makes_room() {
        let mut shares = KeptShares::new(10);
        for number in 0..3 {
            shares.keep(dataset(number, 0), 3, u32::from(number), u64::from(number)).unwrap();
            shares.release(u64::from(number), false);
        }
        assert!(shares.find(&dataset(0, 0), 7).is_some());
        shares.release(7, false);
        shares.keep(dataset(3, 0), 4, 3, 8).unwrap();
        assert_eq!(kept(&shares), [0, 2, 3]);
        assert_eq!(shares.make_room(1), 3);
        assert_eq!(kept(&shares), [0, 3]);
        assert_eq!(shares.make_room(100), 3);
        assert_eq!(kept(&shares), [3]);
    }

    #[test]
    fn a_share_that_finds_no_room_drops_none() {
        let mut shares = KeptShares::new(10);
        shares.keep(dataset(0, 0), 6, 0, 0).unwrap();
        shares.keep(dataset(1, 0), 3, 1, 1).unwrap();
        shares.release(1, false);
        assert_eq!(shares.keep(dataset(2, 0), 5, 2, 2), Err(4));
        assert_eq!(kept(&shares), [0, 1]);
        // The client's own share makes room for the next.
        shares.keep(dataset(0, 0), 10, 2, 0).unwrap();
        assert_eq!(kept(&shares), [2]);
    }

    #[test]
    fn shares_of_files_that_changed_are_dropped_once_nobody_uses_them() {
        let mut shares = KeptShares::new(100);
        shares.keep(dataset(0, 0), 3, 0, 0).unwrap();
        assert!(shares.find(&dataset(0, 1), 1).is_none());
        assert_eq!(kept(&shares), [0]);
        shares.keep(dataset(0, 1), 3, 1, 1).unwrap();
        assert_eq!(shares.release(0, false), 3);
        assert_eq!(kept(&shares), [1]);
        shares.release(1, false);
        assert!(shares.find(&dataset(0, 2), 2).is_none());
        assert_eq!(kept(&shares), [0; 0]);
    }

    #[test]
    fn two_views_of_the_same_files_have_shares_of_their_own() {
        let mut shares = KeptShares::new(100);
        let other = SharedDataset { version: "another database".into(), ..dataset(0, 0) };
        shares.keep(dataset(0, 0), 3, 0, 0).unwrap();
        shares.keep(other.clone(), 3, 1, 1).unwrap();
        shares.release(0, false);
        shares.release(1, false);
        assert_eq!(shares.find(&other, 2).unwrap().memory, 1);
        assert_eq!(shares.find(&dataset(0, 0), 2).unwrap().memory, 0);
    }

    #[test]
    fn a_share_is_dropped_on_demand_only_by_its_last_user() {
        let mut shares = KeptShares::new(100);
        shares.keep(dataset(0, 0), 3, 0, 0).unwrap();
        shares.find(&dataset(0, 0), 1).unwrap();
        assert_eq!(shares.release(0, true), 0);
        assert_eq!(shares.release(1, true), 3);
        assert_eq!(kept(&shares), [0; 0]);
    }

    #[test]
    fn a_client_that_asks_again_gets_the_share_that_it_has() {
        let mut shares = KeptShares::new(100);
        shares.keep(dataset(0, 0), 3, 0, 0).unwrap();
        shares.keep(dataset(0, 0), 3, 1, 1).unwrap();
        // Without its client, the second one would be dropped now.
        shares.keep(dataset(0, 1), 3, 2, 2).unwrap();
        assert_eq!(shares.find(&dataset(0, 0), 1).unwrap().memory, 1);
    }

    #[derive(Clone, Debug)]
    enum Operation {
        Find(u8, u8, ClientId),
        Keep(u8, u8, u64, ClientId),
        Release(ClientId, bool),
        MakeRoom(u64),
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            (0..3_u8, 0..2_u8, 0..5_u64)
                .prop_map(|(place, version, client)| Operation::Find(place, version, client)),
            (0..3_u8, 0..2_u8, 0..60_u64, 0..5_u64).prop_map(|(place, version, bytes, client)| {
                Operation::Keep(place, version, bytes, client)
            }),
            (0..5_u64, any::<bool>()).prop_map(|(client, drops)| Operation::Release(client, drops)),
            (0..100_u64).prop_map(Operation::MakeRoom),
        ]
    }

    proptest! {
        #[test]
        fn used_shares_stay_and_the_limit_holds(operations in prop::collection::vec(operation(), 1..80)) {
            let mut shares = KeptShares::new(100);
            // The share that each client uses, by its number.
            let mut uses: HashMap<ClientId, u32> = HashMap::new();
            for (number, operation) in (0..).zip(operations) {
                let (before, held) = (kept(&shares), shares.held_bytes());
                match operation {
                    Operation::Find(place, version, client) => {
                        let wanted = dataset(place, version);
                        let newest = before.iter().rev().find(|one| {
                            shares.iter().any(|share| share.memory == **one && share.dataset == wanted)
                        });
                        let newest = newest.copied();
                        let found = shares.find(&wanted, client).map(|share| share.memory);
                        uses.remove(&client);
                        uses.extend(found.map(|found| (client, found)));
                        prop_assert_eq!(found, newest);
                    }
                    Operation::Keep(place, version, bytes, client) => {
                        match shares.keep(dataset(place, version), bytes, number, client) {
                            Ok(()) => {
                                uses.insert(client, number);
                            }
                            Err(room) => {
                                prop_assert!(room < bytes);
                                prop_assert_eq!(kept(&shares), before);
                            }
                        }
                    }
                    Operation::Release(client, drops) => {
                        let freed = shares.release(client, drops);
                        uses.remove(&client);
                        prop_assert_eq!(held - shares.held_bytes(), freed);
                    }
                    Operation::MakeRoom(bytes) => {
                        let freed = shares.make_room(bytes);
                        prop_assert_eq!(held - shares.held_bytes(), freed);
                        prop_assert!(freed >= bytes || shares.unused_bytes() == 0);
                    }
                }
                prop_assert!(shares.held_bytes() <= 100);
                for share in shares.iter() {
                    let users: BTreeSet<ClientId> =
                        uses.iter().filter(|(_, used)| **used == share.memory).map(|(client, _)| *client).collect();
                    prop_assert_eq!(&share.users, &users);
                }
                for used in uses.values() {
                    prop_assert!(kept(&shares).contains(used));
                }
                for place in 0..3_u8 {
                    let unused = shares.iter().filter(|share| {
                        share.users.is_empty() && share.dataset.place == place.to_string()
                    });
                    prop_assert!(unused.count() <= 1);
                }
            }
        }
    }
}

//! What is decided for a node, and what that rests on besides the job.

use forebay_plan::config::{IoMode, JobFacts, JobTooLarge, Locate, Settings, copy_buffer_bytes, decide_job};
use forebay_plan::{Order, OrderKind, STREAM_CONTROL_BYTES, default_group, stream_buffer_bytes};

use crate::error::Error;
use crate::facts::data_facts;
use crate::job::Job;
use crate::places::Places;

/// What was decided for a node.
#[derive(Clone, Debug)]
pub(crate) struct Decisions {
    /// It knows nothing of shares.
    pub(crate) order: Order,
    pub(crate) settings: Settings,
    /// Whether its strategy can use tiers, and there are some.
    pub(crate) has_tiers: bool,
    /// Memory for copies on their way to tiers, of each process \[B\].
    pub(crate) copy_buffer_bytes: u64,
}

/// What a node streams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streamed<'a> {
    pub(crate) order: &'a Order,
    /// Staging memory for that \[B\].
    pub(crate) staging_bytes: u64,
    /// Length of a unit \[B\].
    pub(crate) unit_bytes: u64,
}

impl Job {
    /// The decisions of the engine on a node with `node_ranks` ranks. `has_shares` tells whether
    /// each node holds a share of the dataset, `streamed` what the node streams in the order
    /// `opportunistic`.
    pub(crate) fn decide(
        &self,
        places: &Places,
        node_ranks: u32,
        has_shares: bool,
        streamed: Option<Streamed<'_>>,
    ) -> Result<Decisions, Error> {
        let options = self.loader_options(node_ranks).checked()?;
        options.strategy.check()?;
        if options.strategy.locate == Locate::Scan && places.leaves().is_empty() {
            return Err(Error::NotModelled("a walk through a file whose tree is not computed".to_owned()));
        }
        let samples = places.samples();
        let (group_samples, group_window) = default_group(samples, places.sample_bytes() as f64, 1);
        let order = match streamed {
            Some(streamed) => streamed.order.clone(),
            None => options.order(samples, group_samples, group_window, None)?,
        };
        self.check_given(&order, samples)?;
        let mut data = data_facts(places, order.largest_batch());
        let read_options = options.read_options(false, 0);
        let mut budget = self.budget()?;
        if let Some(streamed) = streamed {
            (data.stream_bytes, data.stream_unit_bytes) = (streamed.staging_bytes, streamed.unit_bytes);
            if budget.is_default {
                // The windows follow from the entropy, not from the default.
                let (buffers, ranks) = (options.strategy.batch_buffers, node_ranks as usize);
                let buffer_bytes = stream_buffer_bytes(buffers, ranks, data.batch_bytes);
                let needed = buffer_bytes + STREAM_CONTROL_BYTES + streamed.staging_bytes;
                budget.requested_bytes = budget.requested_bytes.max(needed);
            }
        }
        let storage = self.storage_facts(&options, &data, &order);
        let has_tiers = !options.tiers.tiers.is_empty();
        let facts = JobFacts {
            options: &read_options,
            data: &data,
            storage: &storage,
            order: &order,
            budget: &budget,
            copy_buffer_bytes: if has_tiers {
                copy_buffer_bytes(node_ranks as usize, budget.left_bytes())
            } else {
                0
            },
            has_tiers_of_shares: has_tiers && has_shares,
        };
        let plan = decide_job(&facts).map_err(|JobTooLarge { least, budget }| Error::Memory {
            minimum_bytes: least.minimum_bytes,
            buffer_bytes: least.buffer_bytes,
            staging_bytes: least.staging_bytes,
            found_bytes: budget.left_bytes(),
        })?;
        let order =
            if streamed.is_some() { order } else { options.decided_order(samples, &plan.settings)? };
        let steps = order.steps_per_epoch();
        if self.steps.is_some_and(|found| found > steps) {
            let found = self.steps.unwrap_or_default();
            return Err(Error::job("steps", format!("at most {steps}, as an epoch has"), &found));
        }
        let (settings, copy_buffer_bytes) = (plan.settings, plan.copy_buffer_bytes);
        let decisions = Decisions { order, settings, has_tiers, copy_buffer_bytes };
        if let Some(program) = self.program {
            if program.walks() && places.leaves().is_empty() {
                return Err(Error::NotModelled(
                    "a cursor through a file whose tree is not computed".to_owned(),
                ));
            }
            // What the loader would do does not matter.
            return Ok(Decisions { has_tiers: false, ..decisions });
        }
        match decisions.settings.mode {
            IoMode::CursorWalk { .. } if places.leaves().is_empty() => {
                Err(Error::NotModelled("a cursor through a file whose tree is not computed".to_owned()))
            }
            IoMode::Mapped => {
                Err(Error::NotModelled("files that are in the page cache from the beginning".to_owned()))
            }
            IoMode::Planned { .. } | IoMode::Store | IoMode::CursorWalk { .. } => Ok(decisions),
        }
    }

    /// Checks the ids of the order `given`.
    fn check_given(&self, order: &Order, samples: u64) -> Result<(), Error> {
        if !matches!(order.kind(), OrderKind::Given { .. }) {
            return Ok(());
        }
        if self.given.is_empty() {
            return Err(Error::NotModelled("the order given, without ids".to_owned()));
        }
        for ids in &self.given {
            if ids.len() as u64 != order.spec().samples {
                return Err(Error::job("given", format!("{} ids", order.spec().samples), &ids.len()));
            }
            if let Some(id) = ids.iter().find(|id| **id >= samples) {
                return Err(Error::job("given", format!("ids below {samples}"), id));
            }
        }
        Ok(())
    }
}

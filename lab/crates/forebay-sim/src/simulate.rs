//! Runs a job.

use std::num::NonZero;
use std::sync::Arc;
use std::thread::{Builder, ScopedJoinHandle};

use forebay_model::{FileSystem, Kernel, ModelTime, Noise, Processors, ServerResult};
use forebay_plan::config::{GatherFacts, IoMode, Settings, gather_threads};
use forebay_types::SamplePlaces;
use serde::{Deserialize, Serialize};

use crate::actors::{Thread, preparing, threads};
use crate::costs::nanoseconds;
use crate::decisions::JobDecisions;
use crate::error::Error;
use crate::gate::Gate;
use crate::job::{Job, Window};
use crate::node::Node;
use crate::places::Places;
use crate::result::{NodeResult, RunResult};
use crate::run::NodeRun;
use crate::store::Store;
use crate::tiers::NodeTiers;
use crate::world::{Before, World};

/// A job, simulated with several seeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Simulated {
    /// Steps of each run that count.
    pub steps: u64,
    /// Which these are, if not all of all epochs.
    pub window: Option<Window>,
    /// Steps of an epoch.
    pub steps_per_epoch: u64,
    /// Samples of all ranks in a run.
    pub samples: u64,
    /// Time that each meeting of the ranks takes after the last one has arrived \[ns\].
    pub meeting_ns: u64,
    /// One for each seed.
    pub runs: Vec<RunResult>,
}

/// Simulates a job once for each seed. Seeds decide what varies between runs: the start of the
/// nodes, compute times, the jitter of the file system; the seed of the order is that of the job.
///
/// # Errors
///
/// A job that is not valid, or that has no model.
pub fn simulate(job: &Job, places: &Places, seeds: &[u64]) -> Result<Simulated, Error> {
    let decided = JobDecisions::of(job, places)?;
    let steps_per_epoch = decided.order.steps_per_epoch();
    let window = job.window(decided.settings(0), steps_per_epoch);
    let counted = window.unwrap_or(Window { after: 0, steps: steps_per_epoch * job.epochs });
    let runs = on_all_cores(seeds, |seed| run(job, places, &decided, counted, seed))?;
    let (steps, meeting_ns) = (counted.steps, job.meeting_ns());
    let samples = steps * job.batch_size * u64::from(job.ranks);
    Ok(Simulated { steps, window, steps_per_epoch, samples, meeting_ns, runs })
}

fn run(
    job: &Job,
    places: &Places,
    decided: &JobDecisions,
    window: Window,
    seed: u64,
) -> Result<RunResult, Error> {
    let mut kernel = Kernel::default();
    let mut storage = FileSystem::new(&job.machine.with_page_cache(&job.storage), job.rules, seed)?;
    let mut noise = Noise::new(seed);
    let cores = job.machine.cores as usize;
    let shared = job.machine.is_shared.then(|| kernel.processors(cores));
    let settings: Vec<&Settings> = (0..job.nodes as usize).map(|node| decided.settings(node)).collect();
    let nodes: Vec<Node> = (0..job.nodes)
        .map(|node| {
            let ranks = job.ranks_of(node).len() as u32;
            let of_loader = settings[node as usize].region.buffers;
            let buffers = job.program.map_or(of_loader, |program| program.batches());
            let processors: Processors = shared.unwrap_or_else(|| kernel.processors(cores));
            let start = nanoseconds(noise.fraction() * job.start_skew_us * 1e3);
            let mut made = Node::new(&mut kernel, storage.add_node(), processors, ranks, start, buffers);
            // A single node need not wait for others.
            made.gate = (job.strategy.stagger.is_some() && job.nodes > 1).then(|| Gate::new(&mut kernel));
            made
        })
        .collect();
    let mut world = World {
        job,
        places,
        order: &decided.order,
        settings,
        shard_bytes: places.shard_bytes(),
        storage,
        nodes,
        steps: window.after + window.steps,
        uncounted: window.after,
        arrived: 0,
        together: kernel.condition(),
        ready: 0,
        step_ends: Vec::new(),
        epochs: Vec::new(),
        given: job.given.iter().map(|ids| ids.as_slice().into()).collect(),
        chunks: &decided.chunks,
        tiers: Vec::new(),
        runs: Vec::new(),
        store: decided.store.as_ref().map(|plan| Store::new(job, plan, &mut kernel)),
        loads: (0..job.nodes as usize).map(|node| decided.loads(node, places)).collect(),
        before: Before::default(),
    };
    for (node, plan) in (0..).zip(&decided.tiers) {
        world.tiers.push(NodeTiers::new(job, Arc::clone(plan), &mut kernel, seed + node)?);
    }
    if job.program.is_some() && !job.tiers.is_empty() {
        let run = |node| NodeRun::new(job, places.files(), &mut kernel, seed + node);
        world.runs = (0..u64::from(job.nodes)).map(run).collect::<Result<_, _>>()?;
    }
    let mut actors: Vec<Thread> = Vec::new();
    for node in 0..job.nodes as usize {
        let longer = 1.0 + job.compute_jitter * noise.fraction();
        let compute_ns = nanoseconds(job.compute_ns() as f64 * longer);
        let gathers = gather_threads(&GatherFacts {
            cores: (cores / world.nodes[node].ranks as usize).max(1),
            buffers: world.settings(node).region.buffers,
            decode_threads: 0,
            store_requests: world.store.as_ref().map(|store| store.plan.limits.requests),
            has_locator: matches!(world.settings(node).mode, IoMode::CursorWalk { roots: false }),
        });
        actors.extend(threads(&mut world, node, gathers, compute_ns));
    }
    if job.program.is_none() {
        let duration = nanoseconds(job.costs.start_up_ns);
        world.nodes.iter_mut().for_each(|node| node.begin += node.work_of_ranks(&mut kernel, duration));
    }
    let mut preparing = preparing(job, &world);
    if !preparing.is_empty() {
        // It is a part of making the loaders.
        kernel.run(&mut preparing, &mut world);
        let prepared_ns = kernel.now() + job.meeting_ns();
        world.nodes.iter_mut().for_each(|node| node.begin += prepared_ns);
    }
    kernel.run(&mut actors, &mut world);
    if world.step_ends.len() as u64 != world.steps {
        return Err(Error::Stuck { steps: world.step_ends.len() as u64, expected: world.steps });
    }
    Ok(result(world, kernel.now(), seed, kernel.events()))
}

/// What a run measured in the steps that count.
fn result(mut world: World<'_>, end: ModelTime, seed: u64, events: u64) -> RunResult {
    let Before { begin, traffic, servers } = std::mem::take(&mut world.before);
    let begin = begin.max(world.ready);
    // As if the steps that do not count took no time.
    let uncounted_ns = begin - world.ready;
    // Where steps do not count there is no whole epoch.
    let epochs = if world.uncounted == 0 { world.take_epochs() } else { Vec::new() };
    let counted = world.step_ends.iter().skip(world.uncounted as usize);
    let node = |(place, node): (usize, &Node)| NodeResult {
        startup_ns: node.counters.startup_ns,
        wait_ns: node.counters.wait_ns,
        compute_ns: node.counters.compute_ns,
        skew_ns: node.counters.skew_ns,
        reads: node.counters.reads,
        read_bytes: node.counters.read_bytes,
        copied_bytes: match (world.tiers.get(place), world.runs.get(place)) {
            (Some(tiers), _) => tiers.copied_bytes,
            (None, Some(run)) => run.copied_bytes,
            (None, None) => 0,
        },
        skipped_bytes: world.tiers.get(place).map_or(0, |tiers| tiers.skipped_bytes),
        loaded_bytes: node.counters.loaded_bytes,
        traffic: world.storage.traffic(node.id) - traffic.get(place).copied().unwrap_or_default(),
    };
    let server = |(place, done): (usize, &ServerResult)| {
        done.clone() - servers.get(place).cloned().unwrap_or_default()
    };
    RunResult {
        seed,
        wall_ns: end - begin,
        startup_ns: world.ready,
        epochs,
        step_ends: counted.map(|end| end - uncounted_ns).collect(),
        nodes: world.nodes.iter().enumerate().map(node).collect(),
        servers: world.storage.servers().iter().enumerate().map(server).collect(),
        events,
    }
}

/// Runs all seeds, as many at a time as there are cores; the results are in the order of the seeds.
fn on_all_cores<T: Send>(
    seeds: &[u64],
    run: impl Fn(u64) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let (run, mut found) = (&run, Vec::with_capacity(seeds.len()));
    for together in seeds.chunks(cores) {
        let ended = std::thread::scope(|scope| {
            let start = |seed| (seed, Builder::new().spawn_scoped(scope, move || run(seed)));
            let threads: Vec<_> = together.iter().copied().map(start).collect();
            // Where no thread can be had, this one does the work.
            let join = |(seed, thread): (u64, std::io::Result<ScopedJoinHandle<'_, _>>)| {
                thread.map_or_else(|_| Ok(run(seed)), ScopedJoinHandle::join)
            };
            threads.into_iter().map(join).collect::<Vec<_>>()
        });
        for result in ended {
            found.push(result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
    }
    Ok(found)
}

//! Pure functions between the order and the readers: no I/O, no clock, no unsafe.
//!
//! Each folder imports only from those above it:
//!
//! - `ln_factorial`, `permutation`: arithmetic; any position of a shuffled sequence, without the
//!   sequence.
//! - `nodes`: how a dataset is cut, what each node of a job holds of it, and where ([`ChunkMap`],
//!   [`NodeShares`], [`StoreLayout`], [`SamplePlaces`](forebay_types::SamplePlaces)).
//! - `stream`: what nodes keep and stream where the order is `opportunistic` ([`StreamMemory`]).
//! - `order`: which sample stands at which position of an epoch ([`Order`]). In it,
//!   `shuffle_quality` and `draw_entropy` say how well it shuffles, `convergence` for how many
//!   epochs that will do, and `state` writes and checks the states of loaders.
//! - `schedule`: which samples are read together ([`Schedule`], [`Segment`]).
//! - `read`: which reads fetch them ([`Plan`], [`plan_into`]), and where their bytes are staged
//!   ([`StagingRing`]); samples by id ([`RandomReads`]).
//! - `tier`: what is copied into storage tiers, and what that saves ([`Placement`],
//!   [`TierForecast`]).
//! - [`config`]: what is decided once per loader: how its node reads, in which sizes, within which
//!   budget ([`config::decide`]).
//! - [`options`]: what a loader is asked for: which values are valid, and which go together
//!   ([`options::LoaderOptions`]).
//! - `pace`: what the threads of a node do when ([`PlanWindow`], [`AnnounceWindow`],
//!   [`BufferUse`]).
//! - `stagger`: which nodes may read at a time ([`TokenClient`]).
//! - `strategy`: what a strategy that is plugged into a loader implements, and what it is given
//!   ([`SampleLocator`], [`IndexScanner`]).
//!
//! Every process of a node calls these functions with the same arguments and gets the same answers;
//! that is what replaces a work queue between processes.
#![forbid(unsafe_code)]

pub mod config;
mod ln_factorial;
mod nodes;
pub mod options;
mod order;
mod pace;
mod permutation;
mod read;
mod schedule;
mod stagger;
mod strategy;
mod stream;
mod tier;

pub use config::stream_choice::{
    DEFAULT_ENTROPY, NoWindow, STREAM_CONTROL_BYTES, WindowFacts, WindowWish, stream_buffer_bytes,
    stream_node_memory,
};
pub use nodes::chunk_map::{ChunkMap, FileBytes, Geometry};
pub use nodes::chunk_set::ChunkSet;
pub use nodes::loads::{LOAD_BYTES, LOAD_CHUNKS, load_threads, ranges_of_chunks};
pub use nodes::peer_requests::{
    PeerPiece, PeerRequest, RequestLimits, SharePart, peer_requests, share_parts,
};
pub use nodes::shares::{NodeShares, ShareUnit};
pub use nodes::store_layout::{NO_OWNER, StoreLayout};
pub use nodes::units::{Progress, chunk_owners, chunks_of_share, dataset_key, share_units};
pub use order::convergence::Convergence;
pub use order::draw_entropy::DrawEntropy;
pub use order::mixture::{Mixture, MixtureSource, MixtureSpec, Stop};
pub use order::shuffle_quality::Quality;
pub use order::state::{OrderState, Resumption, STATE_VERSION, StateError, StateValue};
pub use order::{LastBatch, Order, OrderError, OrderKind, OrderSpec, PermutationCache, default_group};
pub use pace::announce_window::AnnounceWindow;
pub use pace::back_pressure::BufferUse;
pub use pace::plan_window::{
    PlanWindow, SEGMENTS_AHEAD, may_end_planning, read_ahead_end, segments_ahead, wanted_end,
};
pub use pace::readers::{home_of_reader, next_block_of_reader, reader_of_block};
pub use read::in_place::{AskedAhead, InPlaceRun, RequestTraits, group_takes_more, in_place_runs};
pub use read::kept_units::{UnitFacts, kept_by_id_bytes, warns_of_amplification};
pub use read::plan::{Block, Decode, IoLimits, Part, Plan, Read};
pub use read::planned::plan_into;
pub use read::random::{RandomRead, RandomReads, read_threads};
pub use read::staging::{StagingRing, StagingSlot};
pub use schedule::segment::{Demand, Segment};
pub use schedule::{Next, Schedule};
pub use stagger::{TokenClient, TokenHost};
pub use strategy::{
    BoxedLocator, IndexScanner, LocatorCounter, LocatorFactory, LocatorHost, LocatorTask, MappedShards,
    SampleLocator, ScanHost, SendError,
};
pub use stream::memory::{NodeMemory, StreamMemory, UnitBytes};
pub use stream::unit_ranges::{RANGE_ENTRY_BYTES, UnitCost, kept_ranges, ranges_of_units, unit_costs};
pub use tier::copies::{Copies, NoCopies};
pub use tier::copy_blocks::{BLOCK_BYTES, CopyBlocks, block_extent};
pub use tier::copy_pace::{
    COPY_THREADS, DIRTY_PART_BYTES, LOOK_AT_OTHERS_EVERY, LOOK_FOR_BUFFER_EVERY, WAIT_FOR_OTHERS,
    buffer_wait, rest_after,
};
pub use tier::file_room::{NoCopy, file_room_bytes, first_with_room};
pub use tier::forecast::{EpochBytes, MeasuredEpoch, ReadRates, SavedByTiers, TierForecast, TierLevel};
pub use tier::node_reads::NodeReads;
pub use tier::placement::{Placement, PlacementError, slots_of_levels};
pub use tier::reads::{
    ChunkRead, PieceRead, PieceRun, is_one_request, is_widened, pieces_at_once, waits_for_others,
};
pub use tier::run_policy::{
    COPIERS, CopyStep, Fetch, LOOK_IDLE_EVERY, copy_step, is_flush_due, is_patient, look_again_after,
    may_begin_copy, may_stage,
};

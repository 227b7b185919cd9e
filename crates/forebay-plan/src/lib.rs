//! Pure functions between the order and the readers: no I/O, no clock, no unsafe.
//!
//! - `order`: which sample stands at which position of an epoch ([`Order`]); `permutation`,
//!   `group`, `local_shuffle`, `opportunistic` and `mixture` are its parts, `shuffle_quality` and
//!   `draw_entropy` say how well it shuffles, `convergence` for how many epochs that will do,
//!   `state` writes and checks the states of loaders.
//! - `schedule` and `opportunistic_schedule`: which samples are read together ([`Schedule`]);
//!   `segment`: what they return ([`Segment`]).
//! - `staging`: where in the staging ring bytes go, and after which step they may
//!   ([`StagingRing`]).
//! - `config`: what is decided once per loader: how its node reads, in which sizes, within which
//!   budget ([`config::decide`]).
//! - `plan`: what a plan says ([`Plan`]) and what bounds it ([`IoLimits`]); `reads` makes it
//!   ([`plan_into`]) from `runs` of neighbours, `decode_plan` does the same for units that have to
//!   be decoded. `random_reads` plans the reads of samples by id, for one process
//!   ([`RandomReads`]).
//! - `readers`: which blocks each reader of a node fills, and in which rank it runs;
//!   `announce_window`: which blocks it asks the kernel for before ([`AnnounceWindow`]).
//! - `in_place_reads`: which requests a rank makes for what no reader staged ([`in_place_runs`]).
//! - `plan_window`: when a segment is planned, and when planning ends ([`PlanWindow`]).
//! - `back_pressure`: whether a rank fills one more batch ([`BufferUse`]).
//! - `placement`: which chunks of a data set the storage tiers keep, and in which level
//!   ([`Placement`]).
//! - `share_units`: how a data set is cut into the units that nodes share out ([`share_units`]),
//!   and what lies where ([`SamplePlaces`](forebay_types::SamplePlaces)).
//! - `node_shares`: which samples each node of a job holds ([`NodeShares`]); `chunk_set`: which
//!   chunks ([`ChunkSet`]); `unit_ranges`: which bytes a unit takes ([`UnitCost`]).
//! - `store_layout`: where chunks lie in the shares of an in-memory store ([`StoreLayout`]);
//!   `peer_requests`: how a rank asks other nodes for bytes of theirs ([`peer_requests`]).
//! - `stream_memory`: which units the nodes keep in memory beside windows of what they stream
//!   ([`StreamMemory`]); `stream_choice`: how long these windows are ([`WindowFacts`]);
//!   `stream_sections`: how they move on.
//! - `node_reads`: which runs of bytes one of several nodes reads, and whether it reads them again
//!   ([`NodeReads`]).
//! - `copies`: whether copying what is read into the tiers pays ([`Copies`]).
//! - `tier_reads`: which pieces of a read are copied, and how it is widened for that
//!   ([`ChunkRead`]).
//! - `tier_forecast`: how many bytes each epoch will read from the source and from each level
//!   ([`TierForecast`]).
//! - `run_policy`: what the daemon of `forebay run` copies ([`Fetch`]).
//! - `stagger`: which nodes may read at a time ([`TokenClient`]).
//! - `strategy`: what a strategy that is plugged into a loader implements, and what it is given
//!   ([`SampleLocator`], [`IndexScanner`]).
//!
//! Every process of a node calls these functions with the same arguments and gets the same answers;
//! that is what replaces a work queue between processes.
#![forbid(unsafe_code)]

mod announce_window;
mod back_pressure;
mod chunk_set;
pub mod config;
mod convergence;
mod copies;
mod decode_plan;
mod draw_entropy;
mod group;
mod in_place_reads;
mod kept_units;
mod ln_factorial;
mod local_shuffle;
mod mixture;
mod node_reads;
mod node_shares;
mod opportunistic;
mod opportunistic_schedule;
mod order;
mod peer_requests;
mod permutation;
mod placement;
mod plan;
mod plan_window;
mod random_reads;
mod readers;
mod reads;
mod run_policy;
mod runs;
mod schedule;
mod segment;
mod share_units;
mod shuffle_quality;
mod stagger;
mod staging;
mod state;
mod store_layout;
mod strategy;
mod stream_choice;
mod stream_memory;
mod stream_sections;
mod tier_forecast;
mod tier_reads;
mod unit_ranges;

pub use announce_window::AnnounceWindow;
pub use back_pressure::BufferUse;
pub use chunk_set::ChunkSet;
pub use convergence::Convergence;
pub use copies::{Copies, NoCopies};
pub use draw_entropy::DrawEntropy;
pub use in_place_reads::{AskedAhead, InPlaceRun, RequestTraits, group_takes_more, in_place_runs};
pub use kept_units::{UnitFacts, kept_by_id_bytes, warns_of_amplification};
pub use mixture::{Mixture, MixtureSource, MixtureSpec, Stop};
pub use node_reads::NodeReads;
pub use node_shares::{NodeShares, ShareUnit};
pub use order::{KeptPermutations, Kind, LastBatch, Order, OrderError, OrderSpec, default_group};
pub use peer_requests::{PeerPiece, PeerRequest, RequestLimits, SharePart, peer_requests, share_parts};
pub use placement::{Placement, PlacementError};
pub use plan::{Block, Decode, IoLimits, Part, Plan, Read};
pub use plan_window::{
    PlanWindow, SEGMENTS_AHEAD, may_end_planning, read_ahead_end, segments_ahead, wanted_end,
};
pub use random_reads::{RandomRead, RandomReads, read_threads};
pub use readers::{home_of_reader, next_block_of_reader, reader_of_block};
pub use reads::plan_into;
pub use run_policy::{Fetch, is_flush_due, is_patient, may_begin_copy};
pub use schedule::{Next, Schedule};
pub use segment::{Demand, Segment};
pub use share_units::{
    Progress, chunk_owners, chunks_of_share, data_set_key, share_unit_bytes, share_units, stream_unit_bytes,
};
pub use shuffle_quality::Quality;
pub use stagger::{TokenClient, TokenHost};
pub use staging::{StagingRing, StagingSlot};
pub use state::{OrderState, Resumption, STATE_VERSION, StateError, StateValue};
pub use store_layout::{NO_OWNER, StoreLayout};
pub use strategy::{
    BoxedLocator, IndexScanner, LocatorCounter, LocatorFactory, LocatorHost, LocatorTask, MappedShards,
    SampleLocator, ScanHost, SendError,
};
pub use stream_choice::{DEFAULT_ENTROPY, NoWindow, WindowFacts, WindowWish, stream_node_memory};
pub use stream_memory::{NodeMemory, StreamMemory, UnitBytes};
pub use tier_forecast::{EpochBytes, MeasuredEpoch, ReadRates, SavedByTiers, TierForecast, TierLevel};
pub use tier_reads::{ChunkRead, PieceRead, PieceRun, is_widened, pieces_at_once, waits_for_others};
pub use unit_ranges::{UnitCost, kept_ranges, unit_costs};

//! Errors of the definition of an order, with the numbers that contradict each other.

/// An invalid definition of an order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// There is nothing to put in order.
    #[error("order {kind}: the dataset has no samples")]
    Empty {
        /// Name of the kind.
        kind: &'static str,
    },
    /// A number outside what is possible.
    #[error("order {kind}: {what} is {found}, expected {expected}")]
    Number {
        /// Name of the kind.
        kind: &'static str,
        /// Which number.
        what: &'static str,
        /// Its value.
        found: u64,
        /// What is possible.
        expected: &'static str,
    },
    /// One step takes more than there is.
    #[error(
        "order {kind}: batch larger than the dataset: {ranks} rank(s) with batches of {batch} take {global_batch} samples \
         per step, the dataset has {samples}, and last_batch=\"{last}\" needs at least one whole step"
    )]
    BatchTooLarge {
        /// Name of the kind.
        kind: &'static str,
        /// Name of what the end of an epoch does.
        last: &'static str,
        /// W.
        ranks: u64,
        /// B.
        batch: u64,
        /// G.
        global_batch: u64,
        /// N.
        samples: u64,
    },
    /// A rank would have no sample.
    #[error(
        "order {kind}: fewer samples than ranks: {ranks} ranks, the dataset has {samples}, and each rank needs one \
         at least in a step"
    )]
    FewerThanRanks {
        /// Name of the kind.
        kind: &'static str,
        /// W.
        ranks: u64,
        /// N.
        samples: u64,
    },
    /// `carry` with an order that is not a circle.
    #[error(
        "order {kind}: last_batch=\"carry\" lets epochs flow on around the dataset, which only order sequential can do"
    )]
    Carry {
        /// Name of the kind.
        kind: &'static str,
    },
    /// Lanes that do not divide the work.
    #[error(
        "order {kind}: lanes={lanes} does not fit {ranks} rank(s) and a global batch of {global_batch}: \
         lanes must be a multiple of the ranks and divide the global batch; {works} would work"
    )]
    Lanes {
        /// Name of the kind.
        kind: &'static str,
        /// L as asked for.
        lanes: u64,
        /// W.
        ranks: u64,
        /// G.
        global_batch: u64,
        /// Numbers that would work.
        works: String,
    },
    /// Lanes for an order that has none.
    #[error("order {kind}: lanes={lanes}, but only order group has lanes to choose")]
    LanesWithoutGroups {
        /// Name of the kind.
        kind: &'static str,
        /// L as asked for.
        lanes: u64,
    },
    /// A number of a mixture outside what is possible.
    #[error("mixture: the {what} is {found}, expected {expected}")]
    Mixture {
        /// Which number.
        what: String,
        /// Its value.
        found: u64,
        /// What is possible.
        expected: &'static str,
    },
    /// An order that no source of a mixture can have.
    #[error("order {kind}: the dataset is a mixture, whose sources are sequential, shuffle or group")]
    MixtureKind {
        /// Name of the kind.
        kind: &'static str,
    },
    /// An end of an epoch that a mixture does not have.
    #[error("last_batch=\"{last}\" with a mixture, whose epochs have whole global batches only")]
    MixtureLast {
        /// Name of what the end of an epoch does.
        last: &'static str,
    },
    /// One step takes more of a source than there is.
    #[error(
        "mixture with stop=\"first\": source {source_name:?} has {samples} samples, too few for one step of {global_batch} \
         samples{} without a sample that comes twice",
        if *lanes > 1 { format!(" in {lanes} lanes") } else { String::new() }
    )]
    MixtureStep {
        /// The source that is used up first.
        source_name: String,
        /// Its samples.
        samples: u64,
        /// G.
        global_batch: u64,
        /// L of a group order, else 1.
        lanes: u64,
    },
    /// A source of which an epoch would draw too seldom.
    #[error(
        "mixture with stop=\"all\": source {source_name:?} has a share of {share}, with which an epoch would have more than \
         2^62 samples"
    )]
    MixtureEpoch {
        /// The source that is passed last.
        source_name: String,
        /// Its share.
        share: String,
    },
    /// A bound of the order entropy that no order has.
    #[error("order {kind}: entropy is {found}, expected 0 to 1")]
    EntropyRange {
        /// Name of the kind.
        kind: &'static str,
        /// Its value.
        found: String,
    },
    /// A bound of the order entropy that the longest window does not reach.
    #[error(
        "order {kind}: entropy={asked} is out of reach with windows of at most {most} units; {works} would work"
    )]
    Entropy {
        /// Name of the kind.
        kind: &'static str,
        /// The bound.
        asked: String,
        /// Units of the longest window that is allowed.
        most: u64,
        /// Numbers that would work.
        works: String,
    },
    /// Ids of an epoch of order given that are not as many as was said.
    #[error(
        "order given, epoch {epoch}: {found} sample ids, expected {expected}{}",
        if *is_all { ", one for each sample of the dataset" } else { "" }
    )]
    GivenLength {
        /// The epoch.
        epoch: u64,
        /// Ids given.
        found: u64,
        /// Ids of an epoch.
        expected: u64,
        /// Whether these are all samples of the dataset.
        is_all: bool,
    },
    /// An id of order given that names no sample.
    #[error("order given, epoch {epoch}: sample id {found} at position {position}, expected 0 to {highest}")]
    GivenId {
        /// The epoch.
        epoch: u64,
        /// Position of the id.
        position: u64,
        /// The id.
        found: i64,
        /// N − 1.
        highest: u64,
    },
    /// An id that occurs twice in an epoch of order given.
    #[error(
        "order given, epoch {epoch}: sample id {id} at position {position}, expected one that was not there before"
    )]
    GivenTwice {
        /// The epoch.
        epoch: u64,
        /// Position of its second occurrence.
        position: u64,
        /// The id.
        id: u64,
    },
}

impl OrderError {
    /// How to fix it.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Empty { .. } => {
                Some("check the path and the database= of the dataset; forebay inspect shows what it holds")
            }
            Self::Number { .. } | Self::Mixture { .. } | Self::EntropyRange { .. } => None,
            Self::MixtureKind { .. } => Some("take order=\"group\", \"shuffle\" or \"sequential\""),
            Self::MixtureLast { .. } => Some("leave last_batch= out"),
            Self::MixtureStep { .. } => Some("use a smaller batch, a smaller weight, or stop=\"all\""),
            Self::MixtureEpoch { .. } => Some("give the source more weight, or use stop=\"never\""),
            Self::Entropy { .. } => {
                Some("a node needs memory for two windows; order=\"shuffle\" has an entropy of 1")
            }
            Self::BatchTooLarge { .. } => Some("use a smaller batch, or last_batch=\"partial\""),
            Self::FewerThanRanks { .. } => {
                Some("use fewer ranks, or world=\"single\" where one rank, or each, takes all samples")
            }
            Self::Carry { .. } => Some("use order=\"sequential\", or last_batch=\"fill\""),
            Self::Lanes { .. } => Some("leave lanes out to have them chosen, or use one of these numbers"),
            Self::LanesWithoutGroups { .. } => Some("leave lanes out, or use order=\"group\""),
            Self::GivenLength { is_all: false, .. } => {
                Some("the function given as order returns as many ids as samples= says, for every epoch")
            }
            Self::GivenId { .. } => {
                Some("the function given as order returns sample ids, from 0 to len(dataset) - 1")
            }
            Self::GivenLength { .. } | Self::GivenTwice { .. } => Some(
                "the function given as order returns each id from 0 to len(dataset) - 1 once; \
                 forebay.Given(function, samples=n, repeats=True) allows for other numbers and for repeats",
            ),
        }
    }
}

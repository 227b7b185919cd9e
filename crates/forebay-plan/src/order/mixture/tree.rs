//! The tree of a mixture: which source a position takes a sample from, and how many samples of
//! each source come before it.
//!
//! How it works, in order:
//! 1. Two nodes are joined again and again, the two lightest first (Huffman's construction). Among
//!    equal weights the older node counts as lighter; sources are the oldest, in their order. The
//!    lighter of the two is the right child, and λ = weight of the left / weight of both, rounded
//!    down to a multiple of 2⁻⁶⁴.
//! 2. Of the first p draws of a node, ⌊λ·p + φ⌋ are of its left child, the others of its right one.
//!    So draw p goes to the left exactly if ⌊λ·(p + 1) + φ⌋ > ⌊λ·p + φ⌋.
//! 3. The phase φ of lane l of L at depth k is (2r + 1) / 2L, rounded down to a multiple of 2⁻⁶⁴,
//!    with r = l·aᵏ mod L. The stride a is the first number from max(1, ⌊0.618·L⌋) on that has no
//!    common divisor with L. A single lane has φ = 1/2.
//!
//! Promises, with w the share of a source and n the length of a window of a lane's positions:
//! - The counts of the sources add up to n.
//! - The count of a source differs from w·n by less than 1 + Σ w/W, the sum over the weights W of
//!   the nodes above it, without the root. With two sources that is 1. The weights W grow at least
//!   as the Fibonacci numbers (the sibling of a node that is joined is not lighter than the two
//!   parts of the node), so it is less than 3.36 with any number of sources. In windows that begin
//!   with the epoch it is half of that, where there is one lane.
//! - With two sources, the lanes together have taken ⌊λ·n + 1/2⌋ samples of the left one after n
//!   positions in whole steps, as a single lane has (Hermite: Σ ⌊x + (2l + 1) / 2L⌋ over the lanes
//!   is ⌊L·x + 1/2⌋). The rounding of φ changes nothing, as λ·p is a multiple of 2⁻⁶⁴.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// 2^64 divided by the golden ratio: strides near it spread the phases of neighbouring lanes.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Largest position that a search returns: positions of an epoch are fewer.
const FAR: u64 = 1 << 62;

/// A child of a node.
#[derive(Clone, Copy, Debug)]
enum Child {
    Source(usize),
    Node(usize),
}

/// A node that divides its draws.
#[derive(Clone, Copy, Debug)]
struct TreeNode {
    /// λ·2^64, from 1 on.
    share: u64,
    left: Child,
    right: Child,
}

/// Sources and the nodes above them.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    /// The root is the last one.
    nodes: Vec<TreeNode>,
    /// For each source, the nodes from the root down to it, and whether it is on their left.
    paths: Vec<Vec<(usize, bool)>>,
}

/// The phases φ·2^64 of a lane, by depth.
#[derive(Clone, Debug)]
pub(super) struct Phases(Vec<u64>);

impl Tree {
    /// Of sources with these weights, at least one, each from 1 on and with a sum below 2^63.
    pub(super) fn new(weights: impl Iterator<Item = u64>) -> Self {
        // By weight and age, which says which child it is: sources come before nodes.
        let mut lightest: BinaryHeap<_> =
            weights.enumerate().map(|(source, weight)| Reverse((weight, source))).collect();
        let sources = lightest.len();
        let child = |age: usize| age.checked_sub(sources).map_or(Child::Source(age), Child::Node);
        let mut nodes = Vec::with_capacity(sources);
        while lightest.len() > 1
            && let (Some(Reverse(right)), Some(Reverse(left))) = (lightest.pop(), lightest.pop())
        {
            let weight = left.0 + right.0;
            // The lighter part is at least 1 of 2^63, so the share fits 64 bits.
            let share = ((u128::from(left.0) << 64) / u128::from(weight)) as u64;
            lightest.push(Reverse((weight, sources + nodes.len())));
            nodes.push(TreeNode { share, left: child(left.1), right: child(right.1) });
        }
        let mut paths = vec![Vec::new(); sources];
        let mut above: Vec<Vec<(usize, bool)>> = vec![Vec::new(); nodes.len()];
        for number in (0..nodes.len()).rev() {
            for (child, is_left) in [(nodes[number].left, true), (nodes[number].right, false)] {
                let mut path = above[number].clone();
                path.push((number, is_left));
                match child {
                    Child::Source(source) => paths[source] = path,
                    Child::Node(node) => above[node] = path,
                }
            }
        }
        Self { nodes, paths }
    }

    /// The phases of lane `lane` of `lanes`.
    pub(super) fn phases(&self, lane: u64, lanes: u64) -> Phases {
        let depth = self.paths.iter().map(Vec::len).max().unwrap_or(0);
        let stride = u128::from(stride(lanes));
        let mut place = lane;
        let phases = (0..depth).map(|_| {
            let phase = ((2 * u128::from(place) + 1) << 63) / u128::from(lanes);
            place = (u128::from(place) * stride % u128::from(lanes)) as u64;
            phase as u64
        });
        Phases(phases.collect())
    }

    /// The source of a position, and how many draws of the source come before it.
    pub(super) fn draw(&self, mut position: u64, phases: &Phases) -> (usize, u64) {
        let Some(mut node) = self.nodes.last() else { return (0, position) };
        for phase in &phases.0 {
            let before = node.left_draws(position, *phase);
            let child = if node.left_draws(position + 1, *phase) > before {
                position = before;
                node.left
            } else {
                position -= before;
                node.right
            };
            match child {
                Child::Source(source) => return (source, position),
                Child::Node(number) => node = &self.nodes[number],
            }
        }
        unreachable!("there is a phase for each node of a path")
    }

    /// How many of the first `positions` positions are of a source.
    pub(super) fn count(&self, source: usize, positions: u64, phases: &Phases) -> u64 {
        self.paths[source].iter().zip(&phases.0).fold(positions, |draws, ((node, is_left), phase)| {
            let left = self.nodes[*node].left_draws(draws, *phase);
            if *is_left { left } else { draws - left }
        })
    }

    /// The position of a draw of a source: the inverse of [`Tree::draw`]; at most 2^62.
    pub(super) fn position(&self, source: usize, draw: u64, phases: &Phases) -> u64 {
        let path = self.paths[source].iter().zip(&phases.0).rev();
        path.fold(draw.min(FAR), |draw, ((node, is_left), phase)| {
            let share = u128::from(self.nodes[*node].share);
            let (draw, phase) = (u128::from(draw), u128::from(*phase));
            let position = if *is_left {
                (((draw + 1) << 64) - phase).div_ceil(share) - 1
            } else {
                ((draw << 64) + phase) / ((1 << 64) - share)
            };
            position.min(u128::from(FAR)) as u64
        })
    }
}

impl TreeNode {
    /// How many of the first `draws` draws are of the left child.
    fn left_draws(&self, draws: u64, phase: u64) -> u64 {
        ((u128::from(self.share) * u128::from(draws) + u128::from(phase)) >> 64) as u64
    }
}

/// a of the module header.
pub(super) fn stride(lanes: u64) -> u64 {
    let mut stride = ((u128::from(lanes) * u128::from(GOLDEN)) >> 64).max(1) as u64;
    while gcd(stride, lanes) != 1 {
        stride += 1;
    }
    stride
}

fn gcd(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { gcd(other, one % other) }
}

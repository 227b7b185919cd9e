//! What nodes send to each other, over the links that they also read through.
use super::{Model, transmission_ns};
use crate::ids::{ModelTime, NodeId};

impl Model {
    /// Books bytes that a node sends to another one, called at `now`, from `begin` on, and returns
    /// when they have arrived: both links are busy with them, if links are limited.
    ///
    /// # Panics
    ///
    /// If [`Model::add_node`] did not return both nodes.
    pub fn send(
        &mut self,
        now: ModelTime,
        begin: ModelTime,
        (from, to): (NodeId, NodeId),
        bytes: u64,
    ) -> ModelTime {
        let now = self.advance(now);
        let begin = begin.max(now);
        let Some(rate) = self.spec.link_bytes_per_second else { return begin };
        let link_ns = transmission_ns(bytes, rate);
        let out = &mut self.nodes[from.0 as usize].writes;
        out.forget(now);
        let start = out.book(begin, link_ns);
        let into = &mut self.nodes[to.0 as usize].reads;
        into.forget(now);
        into.book(start, link_ns).saturating_add(link_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Spec;

    #[test]
    fn what_nodes_send_takes_the_link_of_both() {
        let spec = Spec { link_bytes_per_second: Some(1e9), ..Spec::free() };
        let mut model = Model::new(spec, 0).unwrap();
        let [one, two, three] = std::array::from_fn(|_| model.add_node());
        assert_eq!(model.send(0, 10, (one, two), 1000), 1010);
        // The link of the receiver is full duplex, that of the sender is busy.
        assert_eq!(model.send(0, 10, (two, three), 1000), 1010);
        assert_eq!(model.send(0, 10, (one, three), 1000), 2010);
        // So is that of the receiver.
        assert_eq!(model.send(5, 10, (three, two), 500), 1510);
    }

    #[test]
    fn links_without_a_limit_take_no_time() {
        let mut model = Model::new(Spec::free(), 0).unwrap();
        let (one, two) = (model.add_node(), model.add_node());
        assert_eq!(model.send(7, 3, (one, two), 1 << 40), 7);
    }
}

//! A request of a rank to the share of another node: what it takes there, on the links, and here.

use std::cmp::Reverse;

use forebay_model::{Kernel, ModelTime};

use crate::costs::nanoseconds;
use crate::store::ShareRequest;
use crate::world::World;

impl World<'_> {
    /// Sends a request of a rank, unless it has as many in flight as it may; returns when it is
    /// answered.
    ///
    /// # Errors
    ///
    /// When the first of those in flight is answered.
    ///
    /// # Panics
    ///
    /// If there is no store.
    pub(crate) fn fetch(
        &mut self,
        kernel: &mut Kernel,
        (rank, own_node): (u32, usize),
        request: &ShareRequest,
    ) -> Result<ModelTime, ModelTime> {
        let now = kernel.now();
        let store = self.store.as_mut().expect("a rank fetches from a store");
        let (most, servers) = (store.plan.limits.requests, store.servers(request.node));
        let in_flight = store.in_flight(rank, request.node, now);
        if in_flight.len() >= most
            && let Some(Reverse(due)) = in_flight.peek()
        {
            return Err(*due);
        }
        // The thread that serves it takes a core of its node.
        let costs = &self.job.costs;
        let duration = costs.serve(request.parts, request.bytes);
        let server = &self.nodes[request.node];
        let served = kernel.work(servers, duration);
        let served = served.max(kernel.work(server.processors, duration));
        let message_ns = nanoseconds(costs.message_ns);
        let (from, to) = (server.id, self.nodes[own_node].id);
        let sent = self.storage.model().send(now, served + message_ns, (from, to), request.bytes);
        let due = sent + message_ns;
        in_flight.push(Reverse(due));
        Ok(due)
    }
}

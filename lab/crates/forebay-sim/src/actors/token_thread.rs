//! The threads that run the token client of a node: they receive messages, and serve the gate.

use forebay_model::Kernel;
use forebay_plan::TokenClient;

use crate::costs::nanoseconds;
use crate::gate::GateHost;
use crate::mailbox::Channel;
use crate::world::World;

/// See the module header.
pub(crate) struct TokenThread {
    node: usize,
    client: TokenClient,
}

impl TokenThread {
    /// The client of a node of `nodes` in `groups` groups; 0: to be measured.
    pub(crate) fn new(node: usize, nodes: usize, groups: u32) -> TokenThread {
        TokenThread { node, client: TokenClient::new(node, nodes, groups) }
    }

    pub(crate) fn resume(&mut self, kernel: &mut Kernel, world: &mut World<'_>) {
        let wake_ns = nanoseconds(world.job.costs.wake_ns);
        let node = &mut world.nodes[self.node];
        let Some(gate) = &mut node.gate else { return };
        let changes = gate.changes;
        let host = GateHost::new(gate, kernel.now());
        while let Some((from, message)) = node.tokens.take(kernel.now()) {
            self.client.receive(from, &message, &host);
        }
        while self.client.has_work(&host) {
            self.client.attend(&host);
        }
        for (to, message) in host.finish(kernel, wake_ns) {
            world.send(kernel, Channel::Token, (self.node, to), message);
        }
        kernel.wait(changes);
        world.nodes[self.node].tokens.wait(kernel);
    }
}

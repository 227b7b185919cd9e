//! The listening socket of a leader, and its address for the others.
//!
//! A [`Listener`] binds a port that the system chooses, on all interfaces or on the one that the
//! user names. Its [`Endpoint`] lists the addresses of the interfaces, and identifies the machine
//! and network namespace that they belong to. A leader in the same namespace connects over
//! loopback. Loopback and link-local addresses are left out: elsewhere they mean another machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use serde::{Deserialize, Serialize};

use super::error::LinkError;
use super::hex::{from_hex, to_hex};

/// Addresses of an endpoint; further ones usually belong to containers and virtual machines.
const MAX_ADDRESSES: usize = 8;
const ADDRESS_BYTES: usize = 16;
const MACHINE_BYTES: usize = 16;

/// Length of an encoded endpoint \[bytes\].
pub const ENDPOINT_BYTES: usize = MACHINE_BYTES + 4 + MAX_ADDRESSES * ADDRESS_BYTES;

/// How to reach a leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint {
    /// The machine (and its network namespace) on which the addresses hold.
    machine: [u8; MACHINE_BYTES],
    port: u16,
    /// Whether it also listens on loopback.
    everywhere: bool,
    addresses: Vec<IpAddr>,
}

impl Endpoint {
    /// The addresses that a leader on machine `from` tries, in this order.
    pub(crate) fn reached_from(&self, from: &Self) -> Vec<SocketAddr> {
        let same = self.machine == from.machine;
        let loopback = (same && self.everywhere).then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let others = self.addresses.iter().copied().filter(|_| loopback.is_none());
        loopback.into_iter().chain(others).map(|address| SocketAddr::new(address, self.port)).collect()
    }

    /// Another socket of the same process.
    pub(crate) fn at_port(&self, port: u16) -> Self {
        Self { port, ..self.clone() }
    }

    /// What another socket of this process binds to, to be reached in the same way.
    pub(crate) fn bind_address(&self) -> IpAddr {
        let one = self.addresses.first().copied().filter(|_| !self.everywhere);
        one.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }

    /// Encodes the endpoint, always in [`ENDPOINT_BYTES`].
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.machine.to_vec();
        bytes.extend_from_slice(&self.port.to_le_bytes());
        bytes.extend_from_slice(&[u8::from(self.everywhere), self.addresses.len() as u8]);
        for address in &self.addresses {
            let address = match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => *address,
            };
            bytes.extend_from_slice(&address.octets());
        }
        bytes.resize(ENDPOINT_BYTES, 0);
        bytes
    }

    /// Decodes what [`Endpoint::to_bytes`] wrote.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (machine, rest) = bytes.split_first_chunk::<MACHINE_BYTES>()?;
        let ([low, high, everywhere, count], rest) = rest.split_first_chunk::<4>()?;
        let addresses = rest.get(..usize::from(*count) * ADDRESS_BYTES)?;
        let addresses = addresses.chunks_exact(ADDRESS_BYTES).map(|octets| {
            let octets: [u8; ADDRESS_BYTES] = octets.try_into().expect("chunks of that length");
            Ipv6Addr::from(octets).to_canonical()
        });
        (usize::from(*count) <= MAX_ADDRESSES && *everywhere <= 1).then(|| Self {
            machine: *machine,
            port: u16::from_le_bytes([*low, *high]),
            everywhere: *everywhere == 1,
            addresses: addresses.collect(),
        })
    }
}

impl TryFrom<String> for Endpoint {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        from_hex(&text).as_deref().and_then(Self::from_bytes).ok_or("the address of a leader cannot be read")
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        to_hex(&endpoint.to_bytes())
    }
}

/// The socket that the other leaders connect to.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: TcpListener,
    endpoint: Endpoint,
}

impl Listener {
    /// Listens on all interfaces, or only on the one of this name.
    pub fn new(interface: Option<&str>) -> Result<Self, LinkError> {
        let addresses = addresses(interface)?;
        let socket = match interface {
            // With IPV6_V6ONLY off, which is Linux's default, this takes both families.
            None => TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
                .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))),
            Some(_) => TcpListener::bind((addresses[0], 0)),
        }
        .map_err(LinkError::system("listen for the leaders of other nodes"))?;
        let port =
            socket.local_addr().map_err(LinkError::system("see the port of a listening socket"))?.port();
        socket.set_nonblocking(true).map_err(LinkError::system("set up a listening socket"))?;
        let everywhere = interface.is_none();
        let addresses = if everywhere { addresses } else { addresses[..1].to_vec() };
        Ok(Self { socket, endpoint: Endpoint { machine: machine(), port, everywhere, addresses } })
    }

    /// How to reach it.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

/// The addresses under which other machines reach this one, IPv4 first.
fn addresses(interface: Option<&str>) -> Result<Vec<IpAddr>, LinkError> {
    let found =
        if_addrs::get_if_addrs().map_err(LinkError::system("list the network interfaces of this node"))?;
    let names = || {
        let names: std::collections::BTreeSet<&str> = found.iter().map(|one| one.name.as_str()).collect();
        names.into_iter().collect::<Vec<_>>().join(", ")
    };
    let mut addresses: Vec<IpAddr> = found
        .iter()
        .filter(|one| interface.is_none_or(|name| one.name == name))
        .filter(|one| interface.is_some() || !one.is_loopback())
        .filter(|one| !one.is_link_local())
        .map(if_addrs::Interface::ip)
        .collect();
    addresses.sort_by_key(IpAddr::is_ipv6); // stable: within a family as the system lists them
    addresses.truncate(MAX_ADDRESSES);
    match interface {
        Some(name) if addresses.is_empty() => Err(LinkError::Usage {
            message: format!("FOREBAY_INTERFACE: no interface {name} with an address; there are {}", names()),
        }),
        _ => Ok(addresses),
    }
}

/// Identifies the running kernel and its network namespace: equal for two processes if and only if
/// they reach each other over loopback.
fn machine() -> [u8; MACHINE_BYTES] {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    hasher.update(boot.trim().as_bytes());
    hasher.update(network.as_os_str().as_encoded_bytes());
    hasher.digest128().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(machine: u8, everywhere: bool) -> Endpoint {
        let addresses = vec!["10.1.2.3".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        Endpoint { machine: [machine; MACHINE_BYTES], port: 4000, everywhere, addresses }
    }

    #[test]
    fn an_endpoint_survives_bytes_and_strings() {
        let endpoint = endpoint(7, true);
        let bytes = endpoint.to_bytes();
        assert_eq!(bytes.len(), ENDPOINT_BYTES);
        assert_eq!(Endpoint::from_bytes(&bytes).as_ref(), Some(&endpoint));
        let text = serde_json::to_string(&endpoint).unwrap();
        assert_eq!(serde_json::from_str::<Endpoint>(&text).unwrap(), endpoint);
        for length in 0..MACHINE_BYTES + 4 + 2 * ADDRESS_BYTES {
            assert_eq!(Endpoint::from_bytes(&bytes[..length]), None);
        }
        let mut many = bytes;
        many[MACHINE_BYTES + 3] = 9;
        assert_eq!(Endpoint::from_bytes(&many), None);
    }

    #[test]
    fn a_leader_of_this_machine_is_reached_over_loopback_and_others_at_their_addresses() {
        let here = endpoint(1, true);
        assert_eq!(endpoint(1, true).reached_from(&here), ["127.0.0.1:4000".parse().unwrap()]);
        let addresses: Vec<SocketAddr> =
            vec!["10.1.2.3:4000".parse().unwrap(), "[2001:db8::1]:4000".parse().unwrap()];
        assert_eq!(endpoint(2, true).reached_from(&here), addresses);
        assert_eq!(endpoint(1, false).reached_from(&here), addresses, "it listens on one interface only");
    }

    #[test]
    fn an_interface_that_is_not_there_is_named_with_those_that_are() {
        let error = Listener::new(Some("none0")).unwrap_err().to_string();
        assert!(error.contains("no interface none0"), "{error}");
        assert!(error.contains("lo"), "{error}");
    }
}

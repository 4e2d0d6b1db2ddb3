//! Free ports on loopback.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use socket2::{Domain, Socket, Type};

/// Below the range from which Linux takes the ports of outgoing connections (32768..60999), so that a busy client
/// beside us cannot take a port between the look and the listen.
const FIRST: u16 = 10_240;
const LAST: u16 = 32_767;

/// A port on which nothing listens at this moment, and which no earlier call of this process returned (before all have
/// been had). 0, which lets the system choose, when all are taken.
pub fn free() -> u16 {
    static START: OnceLock<u64> = OnceLock::new();
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let span = u64::from(LAST - FIRST) + 1;
    let start = *START.get_or_init(|| {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
        // Fibonacci hashing, so that processes started one after the other begin far from each other.
        (nanos ^ (u64::from(std::process::id()) << 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20
    });
    (0..span)
        .map(|_| FIRST + (start.wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed)) % span) as u16)
        .find(|port| nothing_listens(*port))
        .unwrap_or(0)
}

/// Binds without listening: a process that is being started beside us holds copies of our sockets for a moment, and a
/// copy that listened would keep the port from whom we give it to.
fn nothing_listens(port: u16) -> bool {
    let bind = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())
    };
    bind().is_ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_free_port_can_be_listened_on_and_is_not_given_twice() {
        let first = free();
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, first)).unwrap();
        assert!(!nothing_listens(first));
        let others: Vec<u16> = (0..50).map(|_| free()).collect();
        assert!(!others.contains(&first));
        assert!(others.iter().all(|port| (FIRST..=LAST).contains(port)));
        drop(held);
    }

    #[test]
    fn a_copy_of_the_looking_socket_in_a_child_does_not_keep_the_port() {
        let port = free();
        let copy = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        copy.set_reuse_address(true).unwrap();
        copy.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into()).unwrap();
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
    }
}

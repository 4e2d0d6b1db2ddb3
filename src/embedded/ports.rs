//! Free ports on loopback.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Below the range from which Linux takes the ports of outgoing connections (32768..60999), so that a busy client
/// beside us cannot take a port between the look and the listen.
const FIRST: u16 = 10_240;
const LAST: u16 = 32_767;

/// A port on which nothing listens at this moment. 0, which lets the system choose, when all are taken.
pub fn free() -> u16 {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let seed = nanos ^ (u64::from(std::process::id()) << 32) ^ CALLS.fetch_add(1, Ordering::Relaxed).rotate_left(17);
    let span = u64::from(LAST - FIRST) + 1;
    // Fibonacci hashing of the seed, then one port after the other.
    let start = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
    (0..span)
        .map(|step| FIRST + ((start + step) % span) as u16)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_can_be_bound_and_is_not_given_twice() {
        let first = free();
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, first)).unwrap();
        let others: Vec<u16> = (0..50).map(|_| free()).collect();
        assert!(!others.contains(&first));
        assert!(others.iter().all(|port| (FIRST..=LAST).contains(port)));
        drop(held);
    }
}

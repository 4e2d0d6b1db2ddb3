//! Entry point: sets the allocator up, and hands the command line to `tributary::cli`.

use std::ffi::c_long;
use std::process::ExitCode;

use libmimalloc_sys::{_mi_option_last, mi_option_set_default, mi_option_t};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` and `mi_option_allow_thp` of mimalloc 3. The crate names few options; these are their places in
/// `mi_option_e` of mimalloc.h.
const PURGE_DELAY: mi_option_t = 15;
const ALLOW_THP: mi_option_t = 43;
// Another number of options means other places: look them up again.
const _: () = assert!(_mi_option_last == 47);

/// Memory goes back to the system when it was free for so long. The next merge of a rebuild comes sooner and finds it; a
/// proxy with nothing to merge does not keep it.
const PURGE_DELAY_MS: c_long = 10_000;
/// Memory goes back in whole huge pages only.
const WHOLE_HUGE_PAGES: c_long = 2;

fn main() -> ExitCode {
    keep_freed_memory_a_while();
    tributary::cli::main()
}

/// Fresh memory costs a merge more than the merging. mimalloc asks for huge pages, but gives freed memory back after a
/// second, in pieces of 64 KiB, and the first piece ends the huge page: the next merge takes a fault for every 4 KiB.
/// MIMALLOC_PURGE_DELAY and MIMALLOC_ALLOW_THP in the environment still win.
#[expect(unsafe_code, reason = "a tenth of the page faults: bench/results/2026-12-01-2core/merge.md")]
fn keep_freed_memory_a_while() {
    for (option, value) in [(PURGE_DELAY, PURGE_DELAY_MS), (ALLOW_THP, WHOLE_HUGE_PAGES)] {
        // SAFETY: writes a number into mimalloc's table of options, which checks the index, before a second thread is there.
        unsafe { mi_option_set_default(option, value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(unsafe_code, reason = "reads what the allocator was told")]
    fn options_of_the_allocator_are_where_its_header_has_them() {
        // SAFETY: reads two numbers of mimalloc's table of options.
        let get = || unsafe { [PURGE_DELAY, ALLOW_THP].map(|option| libmimalloc_sys::mi_option_get(option)) };
        assert_eq!(get(), [1000, 1], "mimalloc's defaults");
        keep_freed_memory_a_while();
        assert_eq!(get(), [PURGE_DELAY_MS, WHOLE_HUGE_PAGES]);
    }
}

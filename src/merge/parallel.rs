//! Tasks on scoped threads, claimed one by one.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs `work` on every task with up to `threads` threads, each with a `scratch` of its own; results in the order of the
/// tasks. The first error ends the others after the task they are at.
pub(crate) fn each<T: Send, S, R: Send, E: Send>(
    threads: usize,
    tasks: Vec<T>,
    scratch: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    if threads <= 1 || tasks.len() <= 1 {
        let mut scratch = scratch();
        return tasks.into_iter().map(|task| work(&mut scratch, task)).collect();
    }
    let count = tasks.len();
    let tasks: Vec<Mutex<Option<T>>> = tasks.into_iter().map(|task| Mutex::new(Some(task))).collect();
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut scratch = scratch();
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(slot) = tasks.get(number) else { return Ok(done) };
            let task = slot.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
            let Some(task) = task else { continue };
            match work(&mut scratch, task) {
                Ok(result) => done.push((number, result)),
                Err(error) => {
                    next.store(count, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    };
    let finished: Vec<Result<Vec<(usize, R)>, E>> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(count)).map(|_| scope.spawn(worker)).collect();
        let own = worker();
        let others = others.into_iter().map(|other| other.join().unwrap_or_else(|bug| std::panic::resume_unwind(bug)));
        std::iter::once(own).chain(others).collect()
    });
    let mut results: Vec<(usize, R)> = Vec::with_capacity(count);
    for done in finished {
        results.extend(done?);
    }
    results.sort_unstable_by_key(|(number, _)| *number);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_the_order_of_the_tasks() {
        let results = each(3, (0..100).collect(), || (), |(), task| Ok::<i32, ()>(task * 2));
        assert_eq!(results, Ok((0..100).map(|task| task * 2).collect()));
    }

    #[test]
    fn an_error_is_returned() {
        let outcome = each(2, (0..100).collect(), || (), |(), task| if task == 7 { Err(task) } else { Ok(()) });
        assert_eq!(outcome, Err(7));
    }
}

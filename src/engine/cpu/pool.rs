//! The engine's thread pool: parallel regions of a few microseconds, thousands a second.
//!
//! A region is a number of tasks and one closure. The caller publishes it, takes tasks itself and returns when all are
//! done. Workers spin for a short while after a region, because the next one usually follows at once, and sleep after
//! that. A worker *joins* a region; the caller waits only for workers that joined, so one that the operating system
//! has put aside costs parallelism, not time.

use parking_lot::{Condvar, Mutex};
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an idle worker spins before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Pauses the caller makes before it yields, waiting for the last tasks.
const PAUSES_BEFORE_YIELD: u32 = 2000;

/// Bits of [`Shared::state`]: workers inside, whether one may join, number of the region.
const INSIDE: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const REGION: u64 = 1 << 17;

/// One parallel region, as the workers see it.
#[derive(Clone, Copy)]
struct Region {
    run: *const (dyn Fn(usize) + Sync),
    tasks: usize,
}

struct Shared {
    state: AtomicU64,
    region: UnsafeCell<Option<Region>>,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `region` is the only member that is not `Sync`. It is written by the caller of `run` alone, while the region
// is closed and nobody is inside, and read by workers that joined through `state`, which orders the accesses. The
// closure it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is only followed inside a region, when the closure is alive.
unsafe impl Send for Shared {}

/// A fixed set of threads that work on one region at a time.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held during a region.
    busy: Mutex<()>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Pool {
    /// A pool in which `threads` threads work: the caller of [`run`](Self::run) and `threads - 1` workers.
    ///
    /// 0 counts as 1. If the system refuses a thread the pool is smaller; see [`threads`](Self::threads).
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            region: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        });
        let workers = (1..threads.min(INSIDE as usize))
            .map_while(|i| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new().name(format!("etgenai-{i}")).spawn(move || shared.work()).ok()
            })
            .collect();
        Pool { shared, workers, busy: Mutex::new(()) }
    }

    /// Threads that work in a region, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Call `f` once for every index below `tasks`, on all threads; returns when all calls have returned.
    ///
    /// A call from inside a task, or while another thread runs a region, works too: it runs its tasks itself.
    ///
    /// # Panics
    /// If a task panics: the first panic is raised again here, after all running tasks have ended. Tasks that had not
    /// begun by then are skipped.
    pub fn run(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) {
        let region = (tasks > 1 && !self.workers.is_empty()).then(|| self.busy.try_lock()).flatten();
        let Some(busy) = region else {
            (0..tasks).for_each(f);
            return;
        };
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The pointer is followed by threads inside the region; `close` below
        // returns when none is left, and `f` outlives this call.
        let run = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync)>(f) };
        shared.open(Region { run, tasks });
        shared.take_tasks(tasks, f);
        shared.close();
        let panic = shared.panic.lock().take();
        if let Some(panic) = panic {
            drop(busy);
            resume_unwind(panic);
        }
    }

    /// Split `data` into pieces of `chunk` elements (the last may be shorter) and call `f(index, piece)` for each, on
    /// all threads.
    ///
    /// # Panics
    /// If `chunk` is 0; and as [`run`](Self::run).
    pub fn for_each_chunk<T: Send>(&self, data: &mut [T], chunk: usize, f: &(dyn Fn(usize, &mut [T]) + Sync)) {
        assert!(chunk > 0, "chunks of 0 elements");
        let (pieces, len) = (data.len().div_ceil(chunk), data.len());
        let data = super::kernels::Disjoint::new(data);
        self.run(pieces, &|i| {
            let start = i * chunk;
            // SAFETY: pieces do not overlap, every index comes once, and `start + length` is within `data`.
            let piece = unsafe { data.slice(start, chunk.min(len - start)) };
            f(i, piece);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake_sleepers();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of tasks, so it always ends normally.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Publish a region. The caller holds `Pool::busy`, so the last one is closed and empty.
    fn open(&self, region: Region) {
        // SAFETY: nobody is inside: the region is closed, `close` waited for the last worker, and workers read
        // `region` only while they are inside.
        unsafe { *self.region.get() = Some(region) };
        self.next.store(0, Ordering::Relaxed);
        let number = self.state.load(Ordering::Relaxed) / REGION;
        self.state.store(number.wrapping_add(1).wrapping_mul(REGION) | OPEN, Ordering::SeqCst);
        // A worker announces itself in `sleepers` and then looks at `state` once more; here it is the other way
        // round. With both sides sequentially consistent one of the two sees the other.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.wake_sleepers();
        }
    }

    /// Let no more workers in and wait until those inside have left.
    fn close(&self) {
        self.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut pauses = 0u32;
        while self.state.load(Ordering::Acquire) & INSIDE != 0 {
            if pauses < PAUSES_BEFORE_YIELD {
                pauses += 1;
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Take tasks until none is left. A panic is kept for the caller and ends the region early.
    fn take_tasks(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let task = self.next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    break;
                }
                f(task);
            }
        }));
        if let Err(panic) = outcome {
            self.next.store(tasks, Ordering::Relaxed);
            self.panic.lock().get_or_insert(panic);
        }
    }

    /// A worker's life.
    fn work(&self) {
        let mut last = 0;
        while let Some(state) = self.wait_for_region(last) {
            if self.state.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue; // another worker joined or the region closed: look again
            }
            last = state / REGION;
            // SAFETY: this worker is inside: `region` was written before `state` was opened and is not written again
            // before `close` has seen this worker leave.
            if let Some(region) = unsafe { *self.region.get() } {
                // SAFETY: the closure lives until `Pool::run` returns, which waits in `close` for this worker.
                self.take_tasks(region.tasks, unsafe { &*region.run });
            }
            self.state.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// The state of an open region other than number `last`; `None` when the pool ends.
    fn wait_for_region(&self, last: u64) -> Option<u64> {
        let is_new = |state: u64| state & OPEN != 0 && state / REGION != last;
        let mut began = None;
        loop {
            for _ in 0..64 {
                let state = self.state.load(Ordering::Acquire);
                if is_new(state) {
                    return Some(state);
                }
                std::hint::spin_loop();
            }
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            if began.get_or_insert_with(Instant::now).elapsed() > SPIN {
                self.sleep_unless(is_new);
                began = None;
            }
        }
    }

    fn sleep_unless(&self, is_new: impl Fn(u64) -> bool) {
        let mut lock = self.lock.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !is_new(self.state.load(Ordering::SeqCst)) && !self.stop.load(Ordering::SeqCst) {
            self.wake.wait(&mut lock);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake_sleepers(&self) {
        // Taking the lock orders this after a worker that has looked at `state` but does not wait yet.
        let _lock = self.lock.lock();
        self.wake.notify_all();
    }
}

/// Physical cores this process may use: hardware threads that share a core count once.
pub fn physical_cores() -> usize {
    let logical = std::thread::available_parallelism().map_or(1, usize::from);
    match distinct_cores() {
        Some(cores) => cores.clamp(1, logical),
        None => logical,
    }
}

/// Number of different sibling sets among the online processors, from Linux' sysfs.
fn distinct_cores() -> Option<usize> {
    let entries = std::fs::read_dir("/sys/devices/system/cpu").ok()?;
    let siblings = entries
        .flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("topology/thread_siblings_list")).ok())
        .collect::<std::collections::BTreeSet<_>>();
    (!siblings.is_empty()).then_some(siblings.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_exactly_once() {
        for threads in [0, 1, 2, 3, 8] {
            let pool = Pool::new(threads);
            for tasks in [0, 1, 2, 7, 100, 1000] {
                let counts = (0..tasks).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>();
                pool.run(tasks, &|i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} threads, {tasks} tasks");
            }
        }
    }

    #[test]
    fn many_short_regions_with_and_without_sleep_in_between() {
        let pool = Pool::new(4);
        let total = AtomicUsize::new(0);
        for region in 0..20_000 {
            pool.run(5, &|i| {
                total.fetch_add(i, Ordering::Relaxed);
            });
            if region % 2000 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(total.into_inner(), 20_000 * 10);
    }

    #[test]
    fn a_panicking_task_is_raised_in_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3);
        for bad in [0, 5, 63] {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(64, &|i| assert!(i != bad, "task {i} is bad"));
            }));
            let message = outcome.expect_err("the panic must arrive").downcast::<String>().expect("a text");
            assert_eq!(*message, format!("task {bad} is bad"));
        }
        let count = AtomicUsize::new(0);
        pool.run(10, &|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 10);
    }

    #[test]
    fn regions_may_be_nested_and_started_by_several_threads() {
        let pool = Pool::new(2);
        let count = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.run(4, &|_| {
                            pool.run(3, &|_| {
                                count.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 3 * 200 * 12);
    }

    #[test]
    fn chunks_cover_the_data_once() {
        let pool = Pool::new(2);
        let mut data = vec![0usize; 103];
        pool.for_each_chunk(&mut data, 10, &|i, piece| {
            assert_eq!(piece.len(), if i == 10 { 3 } else { 10 });
            piece.iter_mut().enumerate().for_each(|(j, x)| *x += i * 10 + j);
        });
        assert!(data.iter().enumerate().all(|(i, &x)| i == x));
    }

    #[test]
    fn cores_are_counted() {
        let cores = physical_cores();
        assert!(cores >= 1 && cores <= std::thread::available_parallelism().map_or(1, usize::from));
    }
}

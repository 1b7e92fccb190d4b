//! What C holds: tickets.
//!
//! A handle is a number dressed as a pointer, looked up in one table and never followed. So a handle that was freed,
//! freed twice, made up, or is of another kind is an error code and not a crash, and freeing a handle while another
//! thread is still inside a call on it is harmless: that call keeps the value alive until it returns.

use crate::{Error, Result};
use parking_lot::RwLock;
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

/// A value that C holds a ticket for.
pub(super) trait Handle: Send + Sync + 'static {
    /// Name of the C type.
    const NAME: &'static str;
}

#[derive(Default)]
struct Table {
    /// The ticket given out last.
    last: usize,
    values: HashMap<usize, Arc<dyn Any + Send + Sync>>,
}

/// Tickets are spaced like addresses of aligned objects: some callers keep tag bits in the low bits of a pointer.
const SPACING: usize = 16;

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(RwLock::default);

/// Put `value` in the table. The ticket is not NULL and is not given out again while it is live.
pub(super) fn issue<T: Handle>(value: T) -> *mut T {
    let value = Arc::new(value);
    let mut table = TABLE.write();
    let mut ticket = table.last.wrapping_add(SPACING);
    // Only a 32-bit process that has made hundreds of millions of handles comes round to live ones.
    while ticket == 0 || table.values.contains_key(&ticket) {
        ticket = ticket.wrapping_add(SPACING);
    }
    table.last = ticket;
    table.values.insert(ticket, value);
    std::ptr::without_provenance_mut(ticket)
}

/// The value behind `ticket`.
///
/// # Errors
/// NULL, or not a live handle of this kind.
pub(super) fn get<T: Handle>(ticket: *const T) -> Result<Arc<T>> {
    if ticket.is_null() {
        return Err(Error::invalid(format!("{} is NULL", T::NAME)));
    }
    let value = TABLE.read().values.get(&ticket.addr()).cloned();
    value.and_then(|value| value.downcast().ok()).ok_or_else(|| not_live(ticket))
}

/// The values behind an array of tickets; `what` names it.
///
/// # Errors
/// An element as [`get`] refuses it; the message says which.
pub(super) fn get_all<T: Handle>(tickets: &[*const T], what: &str) -> Result<Vec<Arc<T>>> {
    let named = |(index, &ticket)| get(ticket).map_err(|error| Error::invalid(format!("{what}[{index}]: {error}")));
    tickets.iter().enumerate().map(named).collect()
}

/// Take `ticket` out of the table and drop its value (at the latest when the calls in flight return). NULL is allowed.
///
/// # Errors
/// Not a live handle of this kind.
pub(super) fn free<T: Handle>(ticket: *const T) -> Result<()> {
    if ticket.is_null() {
        return Ok(());
    }
    let mut table = TABLE.write();
    if !table.values.get(&ticket.addr()).is_some_and(|value| value.is::<T>()) {
        return Err(not_live(ticket));
    }
    let value = table.values.remove(&ticket.addr());
    // A destructor may take its time: not under the lock.
    drop(table);
    drop(value);
    Ok(())
}

fn not_live<T: Handle>(ticket: *const T) -> Error {
    Error::invalid(format!("{ticket:p} is not a live {}: it was freed, or is of another kind", T::NAME))
}

/// Number of handles of all kinds that were created and not freed yet, for leak checks in tests.
///
/// - Threads: any.
/// - Owns: nothing.
/// - Codes: none, cannot fail.
/// - After a failure: not applicable.
#[unsafe(no_mangle)]
pub extern "C" fn etg_live_handle_count() -> usize {
    TABLE.read().values.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Apple(u32);
    struct Pear;
    impl Handle for Apple {
        const NAME: &'static str = "apple";
    }
    impl Handle for Pear {
        const NAME: &'static str = "pear";
    }

    #[test]
    fn misuse_is_an_error_that_names_the_kind() {
        let apple = issue(Apple(7));
        assert!(get(apple).is_ok_and(|apple| apple.0 == 7));
        let as_pear = get::<Pear>(apple.cast()).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(as_pear.contains("not a live pear"), "{as_pear}");
        assert!(free::<Pear>(apple.cast()).is_err());
        assert!(free(apple).is_ok());
        assert!(free(apple).is_err(), "double free");
        assert!(get(apple).is_err(), "use after free");
        assert!(free::<Apple>(std::ptr::null()).is_ok());
        assert!(get::<Apple>(std::ptr::null()).is_err());
    }

    #[test]
    fn a_call_in_flight_keeps_the_value() {
        let apple = issue(Apple(3));
        let held = get(apple);
        assert!(free(apple).is_ok());
        assert!(held.is_ok_and(|apple| apple.0 == 3));
    }
}

//! A cursor that can only read bytes that are there.

/// Why reading stopped; the caller adds file and field.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) String);

/// Reads little-endian values front to back. Nothing is allocated before its bytes were seen.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], position: usize) -> Self {
        Cursor { bytes, position }
    }

    /// Bytes read so far, from the start of the file on.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// Bytes still to come.
    pub(super) fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.position)
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let end = self.position.checked_add(len);
        let taken = end.and_then(|end| self.bytes.get(self.position..end));
        let Some(taken) = taken else {
            return Err(Malformed(format!(
                "{len} bytes are needed at byte {}, the file has {} more: it is truncated or damaged",
                self.position,
                self.remaining()
            )));
        };
        self.position += len;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A count of things that take at least `min_bytes` each: more than fit into the rest of the file is malformed.
    pub(super) fn count(&mut self, min_bytes: usize) -> Result<usize, Malformed> {
        let claimed = self.u64()?;
        let possible = self.remaining() / min_bytes.max(1);
        match usize::try_from(claimed) {
            Ok(count) if count <= possible => Ok(count),
            _ => Err(Malformed(format!(
                "claims {claimed} items, the {} bytes left hold at most {possible}: the file is truncated or damaged",
                self.remaining()
            ))),
        }
    }

    /// A string: its length, then that many bytes of UTF-8.
    pub(super) fn string(&mut self) -> Result<&'a str, Malformed> {
        let len = self.count(1)?;
        let at = self.position;
        std::str::from_utf8(self.take(len)?).map_err(|e| Malformed(format!("string at byte {at} is not UTF-8: {e}")))
    }
}

//! Protocol-buffer messages, field by field, as much as a SentencePiece model needs.

/// Why reading stopped; the caller adds file and field.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) String);

/// The value of one field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldValue<'a> {
    /// Integers, booleans and enumerations.
    Varint(u64),
    /// Eight bytes.
    Fixed64,
    /// Texts, bytes and messages.
    Bytes(&'a [u8]),
    /// Four bytes, a float for one.
    Fixed32([u8; 4]),
}

/// The fields of a message, front to back, each with its number. After an error there are no more.
pub(super) struct Message<'a> {
    rest: &'a [u8],
}

impl<'a> Message<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Message { rest: bytes }
    }

    fn field(&mut self) -> Result<(u64, FieldValue<'a>), Malformed> {
        let tag = self.varint()?;
        let number = tag >> 3;
        if number == 0 {
            return Err(Malformed("a field has the number 0".into()));
        }
        let value = match tag & 7 {
            0 => FieldValue::Varint(self.varint()?),
            1 => self.take(8).map(|_| FieldValue::Fixed64)?,
            2 => {
                let length = self.varint()?;
                let length = usize::try_from(length).map_err(|_| Malformed(format!("a length is {length}")))?;
                FieldValue::Bytes(self.take(length)?)
            }
            5 => {
                let bytes = <[u8; 4]>::try_from(self.take(4)?).map_err(|_| Malformed("not four bytes".into()))?;
                FieldValue::Fixed32(bytes)
            }
            other => return Err(Malformed(format!("field {number} has the wire type {other}"))),
        };
        Ok((number, value))
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first().ok_or_else(|| Malformed("it ends within a number".into()))?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed("a number is longer than ten bytes".into()))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            let left = self.rest.len();
            return Err(Malformed(format!("{count} bytes are needed, {left} are left: it is truncated or damaged")));
        };
        self.rest = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Message<'a> {
    type Item = Result<(u64, FieldValue<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_in_order_with_their_numbers() {
        let bytes = [0x08, 0x96, 0x01, 0x12, 0x02, b'h', b'i', 0x1D, 0, 0, 0x80, 0x3F, 0x21, 1, 2, 3, 4, 5, 6, 7, 8];
        let fields: Vec<_> = Message::new(&bytes).map(Result::unwrap).collect();
        assert_eq!(
            fields,
            [
                (1, FieldValue::Varint(150)),
                (2, FieldValue::Bytes(b"hi")),
                (3, FieldValue::Fixed32(1f32.to_le_bytes())),
                (4, FieldValue::Fixed64)
            ]
        );
    }

    #[test]
    fn damage_ends_the_message_with_an_error() {
        let endless = [0x80; 12];
        for bytes in
            [&[0x0A, 5, b'a'][..], &[0x08], &[0x0B], &[0x00, 1], &endless, &[0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F]]
        {
            let fields: Vec<_> = Message::new(bytes).collect();
            assert!(matches!(fields[..], [Err(_)]), "{bytes:?}: {fields:?}");
        }
    }
}

//! Token sequences in which some places hold a row of a picture instead of a token's own embedding.

use crate::media::Embedding;
use std::borrow::Cow;
use std::sync::Arc;

/// Positions of a conversation, oldest first: each a token id, and for some the encoder row that takes the place of
/// that token's embedding. Two positions are the same if id and row are; rows are told apart by the key of their
/// [`Embedding`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sequence {
    ids: Vec<u32>,
    /// By position, ascending.
    rows: Vec<PlacedRow>,
}

/// A row of a picture at its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedRow {
    /// Index of the position.
    pub position: usize,
    /// The picture.
    pub embedding: Arc<Embedding>,
    /// Which of its rows.
    pub row: usize,
}

impl Sequence {
    /// Tokens only.
    pub fn from_ids(ids: Vec<u32>) -> Self {
        Self { ids, rows: Vec::new() }
    }

    /// Token ids; where a picture is, the placeholder's.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Number of positions.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Whether any position holds a row of a picture.
    pub fn has_rows(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Append a token.
    pub fn push(&mut self, id: u32) {
        self.ids.push(id);
    }

    /// Append tokens.
    pub fn extend_ids(&mut self, ids: &[u32]) {
        self.ids.extend_from_slice(ids);
    }

    /// Append the rows of `embedding`, each in the place of token `id`.
    pub fn extend_embedding(&mut self, id: u32, embedding: &Arc<Embedding>) {
        for row in 0..embedding.row_count() {
            self.rows.push(PlacedRow { position: self.ids.len(), embedding: embedding.clone(), row });
            self.ids.push(id);
        }
    }

    /// Append positions `from..to` of another sequence; indices beyond its end count as the end.
    pub fn extend_from(&mut self, other: &Sequence, from: usize, to: usize) {
        let to = to.min(other.len());
        let from = from.min(to);
        let start = self.len();
        self.ids.extend_from_slice(&other.ids[from..to]);
        let shifted = other.rows_in(from, to).iter().cloned();
        self.rows.extend(shifted.map(|row| PlacedRow { position: row.position - from + start, ..row }));
    }

    /// Put row `row` of `embedding` at `position`, which must be behind all rows there are.
    pub(super) fn place(&mut self, position: usize, embedding: &Arc<Embedding>, row: usize) {
        debug_assert!(position < self.len() && self.rows.last().is_none_or(|last| last.position < position));
        self.rows.push(PlacedRow { position, embedding: embedding.clone(), row });
    }

    /// Keep the first `len` positions.
    pub fn truncate(&mut self, len: usize) {
        self.ids.truncate(len);
        let kept = self.rows.partition_point(|row| row.position < len);
        self.rows.truncate(kept);
    }

    /// Forget everything.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Rows of pictures at positions `from..to`.
    pub fn rows_in(&self, from: usize, to: usize) -> &[PlacedRow] {
        let first = self.rows.partition_point(|row| row.position < from);
        let last = self.rows.partition_point(|row| row.position < to);
        self.rows.get(first..last).unwrap_or_default()
    }

    /// Ids of the positions that hold a token and no row.
    pub(super) fn text_ids(&self) -> Cow<'_, [u32]> {
        if self.rows.is_empty() {
            return Cow::Borrowed(&self.ids);
        }
        let is_row = |position: usize| self.rows.binary_search_by_key(&position, |row| row.position).is_ok();
        self.ids.iter().enumerate().filter(|&(position, _)| !is_row(position)).map(|(_, &id)| id).collect()
    }

    /// Number of positions that this and the other sequence have in common at the beginning.
    pub fn common_prefix(&self, other: &Sequence) -> usize {
        let same_ids = self.ids.iter().zip(&other.ids).take_while(|(a, b)| a == b).count();
        let same_rows = self.rows.iter().zip(&other.rows).take_while(|(a, b)| a == b).count();
        // The first row only one of them has, or that differs, ends what they share.
        let end_of = |rows: &[PlacedRow]| rows.get(same_rows).map_or(usize::MAX, |row| row.position);
        same_ids.min(end_of(&self.rows)).min(end_of(&other.rows))
    }

    /// Whether this sequence begins with the other.
    pub fn starts_with(&self, other: &Sequence) -> bool {
        self.common_prefix(other) == other.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::TileLayout;

    const IMAGE: u32 = 99;

    fn embedding(value: f32) -> Arc<Embedding> {
        let whole = TileLayout { rows: 0, cols: 0, overview: true };
        Arc::new(Embedding::from_rows(vec![value; 6], 2, whole).unwrap())
    }

    /// `1 2 [three rows] 3`
    fn with_picture(value: f32) -> Sequence {
        let mut sequence = Sequence::from_ids(vec![1, 2]);
        sequence.extend_embedding(IMAGE, &embedding(value));
        sequence.push(3);
        sequence
    }

    #[test]
    fn pictures_with_equal_ids_are_told_apart() {
        let (a, b) = (with_picture(1.0), with_picture(2.0));
        assert_eq!(a.ids(), b.ids());
        assert_eq!(a.common_prefix(&b), 2);
        assert_eq!(a.common_prefix(&with_picture(1.0)), 6);
        assert!(a.starts_with(&Sequence::from_ids(vec![1, 2])));
    }

    #[test]
    fn a_placeholder_without_a_row_is_another_position() {
        let plain = Sequence::from_ids(with_picture(1.0).ids().to_vec());
        assert_eq!(plain.common_prefix(&with_picture(1.0)), 2);
        assert_eq!(with_picture(1.0).common_prefix(&plain), 2);
    }

    #[test]
    fn cutting_and_joining_keep_rows_at_their_places() {
        let whole = with_picture(1.0);
        let mut joined = Sequence::default();
        joined.extend_from(&whole, 0, 4);
        joined.extend_from(&whole, 4, 100);
        assert_eq!(joined, whole);
        assert_eq!(whole.rows_in(3, 5).iter().map(|row| row.row).collect::<Vec<_>>(), [1, 2]);
        joined.truncate(3);
        assert_eq!((joined.len(), joined.rows_in(0, 9).len()), (3, 1));
    }
}

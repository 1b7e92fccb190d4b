//! The attention mask of one graph: which cache columns and which rows of the block each row may see.

use crate::error::{Error, Result};
use crate::graph::{DType, Tensor, TensorInfo};
use std::ops::Range;
use std::sync::Arc;

/// A mask `[1, 1, AR, CL]` (or `[1, AR, CL]`) that follows the number of tokens in the KV cache.
///
/// Columns `0..CL-AR` are cache slots in position order, the last AR columns are the rows of the block itself. Only
/// two levels exist: *attend* and *masked* (f32 0 and -65535, u16 65535 and 0, u8 255 and 0); graphs compiled with a
/// masked softmax test for equality with the first.
#[derive(Debug)]
pub struct AttentionMask {
    tensor: Tensor,
    rows: usize,
    columns: usize,
    window: Option<usize>,
    past: usize,
    /// What the rows of the block are to each other; `None`: consecutive tokens.
    tree: Option<Arc<[BlockRow]>>,
}

/// A row of a block whose rows are not simply consecutive tokens (lookahead decoding).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRow {
    /// The row whose continuation this one is; it sees what that row sees, and itself.
    pub parent: Parent,
    /// Its position, counted from the number of tokens in the cache.
    pub offset: usize,
}

/// What a row of a block continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parent {
    /// The tokens in the cache.
    Cache,
    /// An earlier row of the block.
    Row(usize),
    /// Nothing: a row that is not used sees itself only.
    Nothing,
}

impl AttentionMask {
    /// The mask of a block on an empty cache. With `window`, a row sees itself and at most `window - 1` positions
    /// before it, whether they lie in the cache or in the block.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an element type without mask levels, [`Error::InvalidArgument`] for a shape that is
    /// no mask or a window of 0.
    pub fn new(info: &TensorInfo, window: Option<usize>) -> Result<Self> {
        Self::in_tensor(Tensor::zeros(info.clone())?, window)
    }

    /// As [`new`](Self::new), in a tensor of the caller.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn in_tensor(tensor: Tensor, window: Option<usize>) -> Result<Self> {
        let info = tensor.info();
        check_dtype(info)?;
        let (rows, columns) = match info.shape[..] {
            [1, 1, rows, columns] | [1, rows, columns] if rows > 0 && rows <= columns => (rows, columns),
            _ => {
                return Err(Error::invalid(format!(
                    "mask {} has shape {:?}, not [1, 1, AR, CL]",
                    info.name, info.shape
                )));
            }
        };
        if window == Some(0) {
            return Err(Error::invalid("a sliding window of 0 tokens sees nothing; it must be 1 or more"));
        }
        let mut mask = Self { tensor, rows, columns, window, past: 0, tree: None };
        mask.write_block();
        Ok(mask)
    }

    /// What the rows of the block are to each other from now on: one entry a row, or `None` for consecutive tokens. Rows
    /// must come after the row they continue.
    ///
    /// # Errors
    /// [`Error::Internal`] for another number of rows, or a row that continues a later one.
    pub fn set_tree(&mut self, tree: Option<&Arc<[BlockRow]>>) -> Result<()> {
        if self.tree.as_ref() == tree {
            return Ok(());
        }
        let later = |(row, entry): (usize, &BlockRow)| matches!(entry.parent, Parent::Row(parent) if parent >= row);
        if tree.is_some_and(|tree| tree.len() != self.rows || tree.iter().enumerate().any(later)) {
            return Err(Error::internal(format!("a tree that does not fit a mask of {} rows", self.rows)));
        }
        self.tree = tree.cloned();
        let past = std::mem::take(&mut self.past);
        self.write_block();
        self.set_past(past)
    }

    /// The tensor to give to the graph.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Make the first `past` cache slots visible (minus what the window hides), and no others. Costs as much as the
    /// number of tokens came or went, a row.
    ///
    /// # Errors
    /// [`Error::Internal`] if this graph does not have that many cache columns.
    pub fn set_past(&mut self, past: usize) -> Result<()> {
        let cache = self.columns - self.rows;
        if past > cache {
            return Err(Error::internal(format!("mask of {cache} cache columns asked to show {past} tokens")));
        }
        for row in 0..self.rows {
            let before = self.visible_cache(row, self.past);
            let after = self.visible_cache(row, past);
            let masked = [before.start..before.end.min(after.start), before.start.max(after.end)..before.end];
            let attended = [after.start..after.end.min(before.start), after.start.max(before.end)..after.end];
            masked.into_iter().for_each(|range| self.fill(row, range, false));
            attended.into_iter().for_each(|range| self.fill(row, range, true));
        }
        self.past = past;
        Ok(())
    }

    /// What row `row` is to the others.
    fn entry(&self, row: usize) -> BlockRow {
        let consecutive = || BlockRow { parent: row.checked_sub(1).map_or(Parent::Cache, Parent::Row), offset: row };
        match &self.tree {
            None => consecutive(),
            Some(tree) => tree.get(row).copied().unwrap_or_else(consecutive),
        }
    }

    /// Cache columns that row `row` sees behind `past` tokens.
    fn visible_cache(&self, row: usize, past: usize) -> Range<usize> {
        if self.tree.is_some() && self.root_of(row) == Parent::Nothing {
            return 0..0;
        }
        let position = past + self.entry(row).offset;
        let hidden = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        hidden.min(past)..past
    }

    /// What the first of the rows that `row` continues continues.
    fn root_of(&self, mut row: usize) -> Parent {
        loop {
            match self.entry(row).parent {
                // Parents come before their rows, so this ends.
                Parent::Row(parent) => row = parent,
                root => return root,
            }
        }
    }

    /// The part about the block itself: each row sees itself and the rows it continues, within the window.
    fn write_block(&mut self) {
        let cache = self.columns - self.rows;
        for row in 0..self.rows {
            self.fill(row, 0..self.columns, false);
            if self.tree.is_none() {
                let first = self.window.map_or(0, |window| (row + 1).saturating_sub(window));
                self.fill(row, cache + first..cache + row + 1, true);
                continue;
            }
            let (own, mut seen) = (self.entry(row).offset, Some(row));
            while let Some(column) = seen {
                let entry = self.entry(column);
                if self.window.is_none_or(|window| own.saturating_sub(entry.offset) < window) {
                    self.fill(row, cache + column..cache + column + 1, true);
                }
                seen = if let Parent::Row(parent) = entry.parent { Some(parent) } else { None };
            }
        }
    }

    fn fill(&mut self, row: usize, columns: Range<usize>, attend: bool) {
        if columns.is_empty() {
            return;
        }
        let start = row * self.columns;
        let range = start + columns.start..start + columns.end;
        let dtype = self.tensor.info().dtype;
        let bytes = self.tensor.bytes_mut();
        match dtype {
            DType::F32 => fill_elements(bytes, range, if attend { 0.0f32 } else { -65535.0 }),
            DType::U16 => fill_elements(bytes, range, if attend { u16::MAX } else { 0 }),
            _ => fill_elements(bytes, range, if attend { u8::MAX } else { 0 }),
        }
    }
}

/// Whether mask levels are defined for the element type.
///
/// # Errors
/// [`Error::Unsupported`] naming the tensor and its type.
pub(super) fn check_dtype(info: &TensorInfo) -> Result<()> {
    match info.dtype {
        DType::F32 | DType::U16 | DType::U8 => Ok(()),
        other => Err(Error::Unsupported(format!(
            "mask {} is {}: only f32, u16 and u8 masks have defined levels",
            info.name,
            other.name()
        ))),
    }
}

fn fill_elements<T: bytemuck::Pod>(bytes: &mut [u8], range: Range<usize>, value: T) {
    // The tensor is allocated for whole elements and aligned to 64 bytes, so the cast cannot fail.
    if let Ok(elements) = bytemuck::try_cast_slice_mut::<u8, T>(bytes)
        && let Some(elements) = elements.get_mut(range)
    {
        elements.fill(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mask(dtype: DType, ar: usize, cl: usize, window: Option<usize>) -> AttentionMask {
        let info = TensorInfo { name: "attention_mask".into(), dtype, shape: vec![1, 1, ar, cl] };
        AttentionMask::new(&info, window).expect("valid mask")
    }

    /// Rows of 0 and 1; any level but the two legal ones fails.
    fn attended(mask: &AttentionMask) -> Vec<Vec<u8>> {
        let flags: Vec<u8> = match mask.tensor.info().dtype {
            DType::F32 => levels(mask, 0.0f32, -65535.0),
            DType::U16 => levels(mask, 65535u16, 0),
            _ => levels(mask, 255u8, 0),
        };
        flags.chunks(mask.columns).map(<[u8]>::to_vec).collect()
    }

    fn levels<T: bytemuck::Pod + PartialEq + std::fmt::Debug>(mask: &AttentionMask, attend: T, masked: T) -> Vec<u8> {
        let elements = mask.tensor.as_slice::<T>().expect("element type");
        elements
            .iter()
            .map(|e| {
                assert!(*e == attend || *e == masked, "illegal level {e:?}");
                u8::from(*e == attend)
            })
            .collect()
    }

    /// Row i sees position p of the cache or the block iff p is not after it and not before its window.
    fn naive(ar: usize, cl: usize, window: Option<usize>, past: usize) -> Vec<Vec<u8>> {
        let sees = |row: usize, column: usize| {
            let own = past + row;
            let position =
                if column < cl - ar { (column < past).then_some(column) } else { Some(past + column - (cl - ar)) };
            position.is_some_and(|p| p <= own && window.is_none_or(|w| own - p < w))
        };
        (0..ar).map(|row| (0..cl).map(|column| u8::from(sees(row, column))).collect()).collect()
    }

    #[test]
    fn truth_table_of_the_contract() {
        for dtype in [DType::F32, DType::U16, DType::U8] {
            let mut mask = mask(dtype, 4, 8, None);
            mask.set_past(2).expect("fits");
            assert_eq!(
                attended(&mask),
                [
                    [1, 1, 0, 0, 1, 0, 0, 0],
                    [1, 1, 0, 0, 1, 1, 0, 0],
                    [1, 1, 0, 0, 1, 1, 1, 0],
                    [1, 1, 0, 0, 1, 1, 1, 1]
                ]
            );
            mask.set_past(4).expect("fits");
            assert!(attended(&mask).iter().all(|row| row[..4] == [1, 1, 1, 1]));
        }
    }

    #[test]
    fn window_of_three_clears_the_contracts_columns() {
        let mut mask = mask(DType::F32, 4, 8, Some(3));
        mask.set_past(2).expect("fits");
        let cleared: Vec<usize> =
            attended(&mask).iter().map(|row| 2 - usize::from(row[0]) - usize::from(row[1])).collect();
        // Row 3 would clear 3 columns; only 2 are filled.
        assert_eq!(cleared, [0, 1, 2, 2]);
    }

    #[test]
    fn window_is_trimmed_inside_the_block() {
        let mask = mask(DType::F32, 4, 8, Some(2));
        assert_eq!(
            attended(&mask).iter().map(|row| row[4..].to_vec()).collect::<Vec<_>>(),
            [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
        );
    }

    /// Lookahead N=3, W=2, G=1 of the contract, in a block of 8: two levels of two branches, a candidate of two tokens.
    fn lookahead_tree() -> Arc<[BlockRow]> {
        let row = |parent, offset| BlockRow { parent, offset };
        use Parent::{Cache, Nothing, Row};
        let rows = [row(Cache, 0), row(Row(0), 1), row(Row(0), 1), row(Row(1), 2), row(Row(0), 1), row(Row(4), 2)];
        rows.into_iter().chain([row(Nothing, 0); 2]).collect()
    }

    #[test]
    fn a_tree_sees_the_cache_and_the_rows_it_continues() {
        let mut mask = mask(DType::U16, 8, 12, None);
        mask.set_past(2).expect("fits");
        mask.set_tree(Some(&lookahead_tree())).expect("a tree of 8 rows");
        let expected: [[u8; 12]; 8] = [
            [1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
            [1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0],
            [1, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0],
            [1, 1, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0],
            [1, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0],
            [1, 1, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        ];
        assert_eq!(attended(&mask), expected);
        mask.set_past(3).expect("fits");
        assert!(attended(&mask)[..6].iter().all(|row| row[..4] == [1, 1, 1, 0]));
        mask.set_tree(None).expect("consecutive again");
        assert_eq!(attended(&mask), naive(8, 12, None, 3));
        assert!(mask.set_tree(Some(&lookahead_tree()[..7].into())).is_err(), "a row is missing");
    }

    #[test]
    fn windows_count_positions_of_a_tree_not_rows() {
        let mut mask = mask(DType::F32, 8, 12, Some(2));
        mask.set_past(2).expect("fits");
        mask.set_tree(Some(&lookahead_tree())).expect("a tree of 8 rows");
        let seen = attended(&mask);
        assert_eq!(seen[0], [0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(seen[4], [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(seen[5], [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0], "positions 2 and 1 behind the cache");
    }

    #[test]
    fn rank_three_masks_of_older_files_work() {
        let info = TensorInfo { name: "m".into(), dtype: DType::U16, shape: vec![1, 2, 4] };
        let mask = AttentionMask::new(&info, None).expect("rank 3");
        assert_eq!(attended(&mask), [[0, 0, 1, 0], [0, 0, 1, 1]]);
    }

    #[test]
    fn bad_masks_are_errors() {
        let info = |dtype, shape: &[usize]| TensorInfo { name: "m".into(), dtype, shape: shape.to_vec() };
        assert!(matches!(AttentionMask::new(&info(DType::F16, &[1, 1, 1, 4]), None), Err(Error::Unsupported(_))));
        assert!(AttentionMask::new(&info(DType::F32, &[2, 1, 1, 4]), None).is_err());
        assert!(AttentionMask::new(&info(DType::F32, &[1, 1, 5, 4]), None).is_err());
        assert!(AttentionMask::new(&info(DType::F32, &[1, 1, 1, 4]), Some(0)).is_err());
        assert!(mask(DType::F32, 4, 8, None).set_past(5).is_err());
    }

    proptest! {
        #[test]
        fn every_history_of_updates_gives_the_naive_mask(
            ar in 1usize..9, cache in 0usize..24, window in prop::option::of(1usize..30),
            steps in prop::collection::vec(0usize..100, 1..8), level in 0usize..3,
        ) {
            let cl = ar + cache;
            let mut mask = mask([DType::F32, DType::U16, DType::U8][level], ar, cl, window);
            prop_assert_eq!(attended(&mask), naive(ar, cl, window, 0));
            for step in steps {
                let past = step % (cache + 1);
                mask.set_past(past).expect("fits");
                prop_assert_eq!(attended(&mask), naive(ar, cl, window, past));
            }
        }
    }
}

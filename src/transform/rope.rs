//! Rotary pairs of neighbours as pairs half a head apart.
//!
//! Meta's checkpoints, GPT-J and GLM rotate rows `2i` and `2i + 1` of a head together; Hugging Face's Llama and NPU graphs
//! rotate rows `i` and `i + r/2` of the `r` rotated ones. If the rows of the query and the key projection are put in
//! another order, the same alike, the second rotation of the moved rows is the first one of the rows where they were, and
//! scores, which only multiply a row of the query with the same row of the key, do not notice.

/// Upstream's order of the rows of a query or key projection (`heads · head_dim` rows): `order[new]` is the old row.
///
/// Each head is cut into `groups` groups of equal length, and in each group the even rows come first, then the odd ones.
/// Upstream takes one group for heads that are rotated whole, and `1 / fraction` groups, rounded down, for heads of which
/// only a fraction is rotated; the groups behind the first are then permuted too, which is harmless where all of them move
/// alike in q and k. Rows that no group has room for stay where they are, and so does everything if there are no groups.
pub fn rope_row_order(heads: usize, head_dim: usize, groups: usize) -> Vec<usize> {
    let group = head_dim.checked_div(groups).unwrap_or(0);
    let within_a_head = || {
        let pairs_apart = (0..groups).flat_map(move |g| {
            let (evens, odds) = ((0..group).step_by(2), (1..group).step_by(2));
            evens.chain(odds).map(move |row| g * group + row)
        });
        pairs_apart.chain(groups * group..head_dim)
    };
    (0..heads).flat_map(|head| within_a_head().map(move |row| head * head_dim + row)).collect()
}

/// The order of rows for heads of which the first `rotary_dim` rows are rotated, in neighbouring pairs: `order[new]` is the
/// old row. Unlike [`rope_row_order`] it leaves the rows behind those, which no rotation touches, where they are.
pub fn half_split_rows(heads: usize, head_dim: usize, rotary_dim: usize) -> Vec<usize> {
    let rotated = rope_row_order(1, rotary_dim.min(head_dim), 1);
    let within_a_head = || rotated.iter().copied().chain(rotated.len()..head_dim);
    (0..heads).flat_map(|head| within_a_head().map(move |row| head * head_dim + row)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_order_is_upstreams() {
        assert_eq!(rope_row_order(1, 8, 1), [0, 2, 4, 6, 1, 3, 5, 7]);
        assert_eq!(rope_row_order(2, 4, 1), [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!(rope_row_order(1, 8, 2), [0, 2, 1, 3, 4, 6, 5, 7]);
    }

    #[test]
    fn rows_without_a_rotation_stay() {
        assert_eq!(half_split_rows(2, 6, 4), [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]);
        assert_eq!(half_split_rows(2, 4, 4), rope_row_order(2, 4, 1));
    }

    proptest! {
        /// Whatever the sizes, no row is lost and none leaves its head.
        #[test]
        fn every_order_is_a_permutation_within_heads(
            heads in 0usize..4, head_dim in 0usize..20, groups in 0usize..6, rotary_dim in 0usize..24,
        ) {
            for order in [rope_row_order(heads, head_dim, groups), half_split_rows(heads, head_dim, rotary_dim)] {
                for (head, rows) in order.chunks(head_dim.max(1)).enumerate() {
                    let mut sorted = rows.to_vec();
                    sorted.sort_unstable();
                    prop_assert_eq!(sorted, (head * head_dim..(head + 1) * head_dim).collect::<Vec<_>>());
                }
                prop_assert_eq!(order.len(), heads * head_dim);
            }
        }
    }
}

//! Rows of pictures and audio clips that were encoded before.

use crate::media::Embedding;
use std::collections::HashMap;
use std::sync::Arc;

/// Keeps the most recently used embeddings, up to a number of bytes. Keys are full hashes of pixels or samples, options
/// and model, so that a hit is the same picture or sound.
#[derive(Debug, Default)]
pub(super) struct ImageCache {
    limit: usize,
    bytes: usize,
    /// Embedding and the time it was used last.
    entries: HashMap<[u8; 32], (Arc<Embedding>, u64)>,
    clock: u64,
}

impl ImageCache {
    /// A cache for at most `limit` bytes of rows.
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// The embedding with this key, which counts as used now.
    pub fn get(&mut self, key: &[u8; 32]) -> Option<Arc<Embedding>> {
        self.clock += 1;
        let (embedding, used) = self.entries.get_mut(key)?;
        *used = self.clock;
        Some(embedding.clone())
    }

    /// Keep an embedding; the ones used longest ago make room. One that is larger than the cache is not kept.
    pub fn insert(&mut self, embedding: Arc<Embedding>) {
        if embedding.bytes() > self.limit {
            return;
        }
        self.clock += 1;
        self.bytes += embedding.bytes();
        if let Some((old, _)) = self.entries.insert(*embedding.key(), (embedding, self.clock)) {
            self.bytes -= old.bytes();
        }
        while self.bytes > self.limit {
            let oldest = self.entries.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| *key);
            let Some((gone, _)) = oldest.and_then(|key| self.entries.remove(&key)) else { break };
            self.bytes -= gone.bytes();
        }
    }

    /// Number of pictures and bytes held.
    pub fn size(&self) -> (usize, usize) {
        (self.entries.len(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::TileLayout;

    /// 8 bytes of rows.
    fn embedding(value: f32) -> Arc<Embedding> {
        let whole = TileLayout { rows: 0, cols: 0, overview: true };
        Arc::new(Embedding::from_rows(vec![value; 2], 2, whole).unwrap())
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut cache = ImageCache::new(16);
        let [a, b, c] = [1.0, 2.0, 3.0].map(embedding);
        cache.insert(a.clone());
        cache.insert(b.clone());
        assert!(cache.get(a.key()).is_some());
        cache.insert(c.clone());
        assert_eq!(cache.size(), (2, 16));
        assert!(cache.get(b.key()).is_none());
        assert!(cache.get(a.key()).is_some() && cache.get(c.key()).is_some());
    }

    #[test]
    fn the_bound_holds_whatever_comes() {
        let mut cache = ImageCache::new(7);
        cache.insert(embedding(1.0));
        assert_eq!(cache.size(), (0, 0));
        let mut cache = ImageCache::new(8);
        cache.insert(embedding(1.0));
        cache.insert(embedding(1.0));
        assert_eq!(cache.size(), (1, 8));
    }
}

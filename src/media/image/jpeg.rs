//! Completeness of a JPEG file.
//!
//! The decoder fills what is missing with grey and says nothing, which suits a viewer but not a model that would be
//! asked about half a picture. A whole file ends with an end-of-image marker.

/// Start of image.
const SOI: u8 = 0xd8;
/// End of image.
const EOI: u8 = 0xd9;
/// Start of scan: entropy-coded data follows the segment.
const SOS: u8 = 0xda;

/// Follows the markers of `bytes` (ITU-T T.81, B.1) to the end of the first image.
///
/// # Errors
/// A sentence, if the data ends or derails before that.
pub(super) fn check_complete(bytes: &[u8]) -> Result<(), String> {
    let truncated = || format!("truncated: no end-of-image marker in {} bytes", bytes.len());
    let mut at = 0;
    loop {
        let marker = next_marker(bytes, &mut at).ok_or_else(truncated)?;
        match marker {
            EOI => return Ok(()),
            // Markers without a segment: start of image, restarts, temporary.
            SOI | 0xd0..=0xd7 | 0x01 => {}
            _ => {
                let length = bytes.get(at..at + 2).ok_or_else(truncated)?;
                at += usize::from(u16::from_be_bytes([length[0], length[1]])).max(2);
                if marker == SOS {
                    skip_entropy_coded(bytes, &mut at);
                }
            }
        }
    }
}

/// The next marker from `at` on, which moves behind it. Stray bytes before it and fill bytes are skipped.
fn next_marker(bytes: &[u8], at: &mut usize) -> Option<u8> {
    loop {
        let rest = bytes.get(*at..)?;
        let prefix = rest.iter().position(|&byte| byte == 0xff)?;
        let marker = rest[prefix..].iter().position(|&byte| byte != 0xff)? + prefix;
        *at += marker + 1;
        if rest[marker] != 0 {
            return Some(rest[marker]);
        }
    }
}

/// Moves `at` to the marker that ends a scan. Within one, 0xff is followed by 0 (a data byte) or a restart.
fn skip_entropy_coded(bytes: &[u8], at: &mut usize) {
    let is_marker = |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0 | 0xd0..=0xd7 | 0xff);
    let rest = bytes.get(*at..).unwrap_or_default();
    *at += rest.windows(2).position(is_marker).unwrap_or(rest.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of the shape the walker looks at: a segment, a scan with stuffed bytes, restarts and fill bytes, the end.
    const WHOLE: [u8; 32] = [
        0xff, SOI, 0xff, 0xe0, 0, 6, 0xff, EOI, 1, 2, 0xff, SOS, 0, 3, 9, 5, 0xff, 0, 0xff, 0xd0, 7, 0xff, 0xd1, 8,
        0xff, 0xff, 0xfe, 0, 2, 0xff, 0xff, EOI,
    ];

    #[test]
    fn a_whole_file_is_complete_whatever_follows() {
        assert_eq!(check_complete(&WHOLE), Ok(()));
        let mut longer = WHOLE.to_vec();
        longer.extend([0xff, 0xd8, 1, 2, 3]);
        assert_eq!(check_complete(&longer), Ok(()));
    }

    /// The end-of-image marker inside the first segment, a thumbnail's say, does not count.
    #[test]
    fn a_file_cut_anywhere_is_not() {
        for length in 0..WHOLE.len() {
            assert!(check_complete(&WHOLE[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn segments_beyond_the_end_and_of_no_length_end_the_walk() {
        assert!(check_complete(&[0xff, SOI, 0xff, 0xe1, 0xff, 0xff, 0xff]).is_err());
        assert!(check_complete(&[0xff, SOI, 0xff, 0xe1, 0, 0]).is_err());
    }
}

//! Transparency: what shows through.

/// What becomes of the alpha channel of a picture that has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Alpha {
    /// Lay the picture over this colour (red, green, blue). transformers does so, with white, for a picture handed
    /// over as an object.
    Background([u8; 3]),
    /// Drop the channel and keep the colours under it, as transformers does for a picture given as a path.
    Ignore,
}

impl Default for Alpha {
    /// White.
    fn default() -> Self {
        Alpha::Background([255; 3])
    }
}

impl Alpha {
    /// The colour seen of `rgb` with opacity `alpha` (255 = opaque).
    #[inline]
    pub(super) fn apply(self, rgb: [u8; 3], alpha: u8) -> [u8; 3] {
        match self {
            Alpha::Ignore => rgb,
            Alpha::Background(background) => {
                std::array::from_fn(|channel| blend(rgb[channel], background[channel], alpha))
            }
        }
    }
}

/// `over` at opacity `alpha` over the opaque `under`, rounded as Pillow's `alpha_composite` rounds.
#[inline]
fn blend(over: u8, under: u8, alpha: u8) -> u8 {
    let (over, under, alpha) = (u32::from(over), u32::from(under), u32::from(alpha));
    let sum = over * alpha + under * (255 - alpha) + 128;
    // Division by 255 to nearest; at most 255, because the weights add up to 255.
    (((sum >> 8) + sum) >> 8) as u8
}

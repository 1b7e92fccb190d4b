//! Pieces of HTML. What is not markup goes through [`escape`].

use std::fmt::Write;

/// `text` with the characters that mean something to a browser replaced, fit for text and for quoted attributes.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            _ => safe.push(c),
        }
    }
    safe
}

/// How the cells of a column are aligned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table: a header, and rows whose cells are escaped.
pub struct Table<'c> {
    columns: &'c [(&'c str, Align)],
    rows: Vec<Vec<String>>,
}

impl<'c> Table<'c> {
    /// A table with these columns.
    pub fn new(columns: &'c [(&'c str, Align)]) -> Self {
        Self { columns, rows: Vec::new() }
    }

    /// Add a row: one cell a column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// All rows.
    pub fn html(&self) -> String {
        self.of_rows(&self.rows)
    }

    /// The first `shown` rows, and all of them behind a line that unfolds; `things` is what a row is about.
    pub fn folded(&self, shown: usize, things: &str) -> String {
        if self.rows.len() <= shown {
            return self.html();
        }
        let (first, all, count) = (self.of_rows(&self.rows[..shown]), self.html(), self.rows.len());
        format!("{first}<details><summary>All {count} {}</summary>\n{all}</details>\n", escape(things))
    }

    fn of_rows(&self, rows: &[Vec<String>]) -> String {
        let class = |align: Align| if align == Align::Right { " class=\"n\"" } else { "" };
        let mut html = String::from("<table>\n<tr>");
        for (name, align) in self.columns {
            let _ = write!(html, "<th{}>{}</th>", class(*align), escape(name));
        }
        html.push_str("</tr>\n");
        for row in rows {
            html.push_str("<tr>");
            for (cell, (_, align)) in row.iter().zip(self.columns) {
                let _ = write!(html, "<td{}>{}</td>", class(*align), escape(cell));
            }
            html.push_str("</tr>\n");
        }
        html.push_str("</table>\n");
        html
    }
}

/// Bytes for people, in powers of 1000.
pub fn bytes(count: u64) -> String {
    let (value, unit) = match count {
        0..1_000 => return format!("{count} bytes"),
        1_000..1_000_000 => (count as f64 / 1e3, "kB"),
        1_000_000..1_000_000_000 => (count as f64 / 1e6, "MB"),
        _ => (count as f64 / 1e9, "GB"),
    };
    format!("{value:.2} {unit}")
}

/// A number with four digits that count, whatever its size.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || (1e-3..1e5).contains(&size) {
        let digits = if size >= 100.0 { 1 } else { 4 };
        format!("{value:.digits$}")
    } else {
        format!("{value:.3e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_text_is_shown_and_not_obeyed() {
        assert_eq!(escape("<b a=\"1\">'&'</b>"), "&lt;b a=&quot;1&quot;&gt;&#39;&amp;&#39;&lt;/b&gt;");
        let mut table = Table::new(&[("<x>", Align::Left), ("n", Align::Right)]);
        table.row(["a<b".to_owned(), "1".to_owned()]);
        let html = table.html();
        assert!(
            html.contains("<th>&lt;x&gt;</th>") && html.contains("<td>a&lt;b</td><td class=\"n\">1</td>"),
            "{html}"
        );
    }

    #[test]
    fn long_tables_are_folded() {
        let mut table = Table::new(&[("x", Align::Left)]);
        (0..5).for_each(|n| table.row([format!("row {n}")]));
        let folded = table.folded(2, "rows");
        assert!(folded.contains("All 5 rows") && folded.matches("row 0<").count() == 2, "{folded}");
        assert_eq!(folded.matches("row 4<").count(), 1);
        assert_eq!(table.folded(5, "rows"), table.html());
    }

    #[test]
    fn numbers_stay_short() {
        assert_eq!([number(0.0), number(0.25), number(-1234.56)], ["0.0000", "0.2500", "-1234.6"]);
        assert_eq!([number(1e-6), number(2.5e9)], ["1.000e-6", "2.500e9"]);
        assert_eq!(
            [bytes(999), bytes(1_500), bytes(2_500_000), bytes(3_000_000_000)],
            ["999 bytes", "1.50 kB", "2.50 MB", "3.00 GB"]
        );
    }
}

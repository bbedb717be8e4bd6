//! A table, for a terminal or for Markdown.

use std::fmt::{Display, Formatter, Result};

/// Rows of cells, the first of which has the titles.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With titles only.
    pub(crate) fn new<T: Into<String>>(titles: impl IntoIterator<Item = T>) -> Self {
        Self {
            rows: vec![titles.into_iter().map(Into::into).collect()],
        }
    }

    /// Adds a row. A row may be shorter than the titles.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// As a table in Markdown.
    pub(crate) fn markdown(&self) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            let missing = std::iter::repeat_n("", columns.saturating_sub(row.len()));
            let cells: Vec<&str> = row.iter().map(String::as_str).chain(missing).collect();
            text.push_str(&format!("| {} |\n", cells.join(" | ")));
            if number == 0 {
                text.push_str(&format!("|{}\n", "---|".repeat(columns)));
            }
        }
        text
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths = Vec::new();
        for row in &self.rows {
            for (column, cell) in row.iter().enumerate() {
                let width = cell.chars().count();
                match widths.get_mut(column) {
                    Some(widest) => *widest = width.max(*widest),
                    None => widths.push(width),
                }
            }
        }
        widths
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let widths = self.widths();
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (cell, &width) in row.iter().zip(&widths) {
                line.push_str(&format!("  {cell:<width$}"));
            }
            writeln!(f, "{}", line.trim_end())?;
            if number == 0 {
                let rules: Vec<String> = widths.iter().map(|&width| "─".repeat(width)).collect();
                writeln!(f, "  {}", rules.join("  "))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["", "a", "b"]);
        table.row(["long name".into(), "1 µs".into(), "2".into()]);
        table.row(["x".into()]);
        assert_eq!(
            table.to_string(),
            "             a     b\n  ─────────  ────  ─\n  long name  1 µs  2\n  x\n"
        );
    }
    #[test]
    fn markdown_rows_are_as_long_as_the_titles() {
        let mut table = Table::new(["", "a"]);
        table.row(["x".into(), "1".into()]);
        table.row(["y".into()]);
        assert_eq!(
            table.markdown(),
            "|  | a |\n|---|---|\n| x | 1 |\n| y |  |\n"
        );
    }
}

//! Reads what the Intel MPI Benchmarks print.

/// One table: a benchmark on some number of processes.
#[derive(Debug, PartialEq)]
pub(crate) struct Table {
    pub(crate) benchmark: String,
    pub(crate) processes: u32,
    /// Column titles: `#bytes`, `#repetitions`, `t[usec]`, `Mbytes/sec`.
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<f64>>,
}

impl Table {
    /// The value in `column` for messages of `bytes` bytes.
    pub(crate) fn at(&self, bytes: u32, column: &str) -> Option<f64> {
        let at = self.columns.iter().position(|title| title == column)?;
        let row = self
            .rows
            .iter()
            .find(|row| row.first() == Some(&f64::from(bytes)))?;
        row.get(at).copied()
    }

    /// Largest message measured; `None` for benchmarks without messages (Barrier).
    pub(crate) fn largest(&self) -> Option<f64> {
        if self.columns.first()? != "#bytes" {
            return None;
        }
        self.rows
            .iter()
            .filter_map(|row| row.first().copied())
            .reduce(f64::max)
    }
}

/// All tables in the output of one run.
pub(crate) fn tables(text: &str) -> Vec<Table> {
    let mut tables: Vec<Table> = vec![];
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("# Benchmarking ") {
            let (name, processes) = match name.split_once(" (") {
                // IMB-P2P: "Stencil2D (2 x 2)".
                Some((name, grid)) => (
                    name,
                    grid.trim_end_matches(')')
                        .split(" x ")
                        .filter_map(|n| n.parse::<u32>().ok())
                        .product(),
                ),
                None => (name, 0),
            };
            let benchmark = name.trim().to_string();
            tables.push(Table {
                benchmark,
                processes,
                columns: vec![],
                rows: vec![],
            });
            continue;
        }
        let Some(table) = tables.last_mut() else { continue };
        if let Some(n) = line.strip_prefix("# #processes = ") {
            table.processes = n.trim().parse().unwrap_or(0);
        } else if line.trim_start().starts_with("#bytes") || line.trim_start().starts_with("#repetitions") {
            table.columns = line.split_whitespace().map(str::to_string).collect();
        } else if !table.columns.is_empty() {
            let row: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
            if let Some(row) = row.filter(|row| row.len() == table.columns.len()) {
                table.rows.push(row);
            }
        }
    }
    tables
}

/// The run came to its regular end.
pub(crate) fn finished(text: &str) -> bool {
    text.contains("All processes entering MPI_Finalize")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
#---------------------------------------------------
# Benchmarking PingPong 
# #processes = 2 
#---------------------------------------------------
       #bytes #repetitions      t[usec]   Mbytes/sec
            0          100         6.31         0.00
      1048576           40       149.85      6997.73

#----------------------------------------------------------------
# Benchmarking Barrier 
# #processes = 2 
# ( 2 additional processes waiting in MPI_Barrier)
#----------------------------------------------------------------
 #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
          100         0.15         0.16         0.16
";

    #[test]
    fn tables_are_read_with_their_columns() {
        let tables = tables(OUTPUT);
        assert_eq!(tables.len(), 2);
        assert_eq!(tables[0].benchmark, "PingPong");
        assert_eq!(tables[0].processes, 2);
        assert_eq!(tables[0].at(1_048_576, "t[usec]"), Some(149.85));
        assert_eq!(tables[0].at(64, "t[usec]"), None);
        assert_eq!(tables[0].largest(), Some(1_048_576.0));
        assert_eq!((tables[1].largest(), tables[1].rows.len()), (None, 1));
    }

    #[test]
    fn a_run_that_broke_off_is_not_finished() {
        assert!(!finished(OUTPUT));
        assert!(finished("# All processes entering MPI_Finalize\n"));
    }
}

//! Mixed traffic under faults: each message exactly once, in order, bytes equal; atomics exactly once.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a panic is how a test fails"
)]

use usb4_sim::{Faults, MS, Mix, Profile, Rng, Scenario, Summary, Traffic, US, World, seeds};

/// Runs a scenario on every profile, a few seeds each.
fn survives(what: impl Fn(&Profile, u64) -> Scenario) -> Summary {
    let mut last = Summary::default();
    for profile in &Profile::ALL {
        for seed in seeds(3) {
            match what(profile, seed).run() {
                Ok(summary) => last = summary,
                Err(failure) => panic!("{}, seed {seed}: {failure}", profile.name),
            }
        }
    }
    last
}

#[test]
fn a_perfect_world() {
    let summary = survives(|profile, seed| Scenario::new(profile, 3_000, Faults::NONE, seed));
    assert_eq!(summary.engine.tx_resent, 0);
    assert_eq!(summary.engine.violations, 0);
}

#[test]
fn loss_and_duplication() {
    let faults = Faults {
        loss: 0.01,
        dup: 0.01,
        ..Faults::NONE
    };
    survives(|profile, seed| Scenario::new(profile, 3_000, faults, seed));
}

#[test]
fn heavy_loss() {
    let faults = Faults {
        loss: 0.2,
        ..Faults::NONE
    };
    survives(|profile, seed| Scenario::new(profile, 1_000, faults, seed));
}

#[test]
fn loss_of_acks_only() {
    let faults = Faults {
        ack_loss: 0.5,
        ..Faults::NONE
    };
    survives(|profile, seed| Scenario::new(profile, 3_000, faults, seed));
}

#[test]
fn bursts_of_loss() {
    let faults = Faults {
        burst: 0.005,
        burst_time: MS,
        ..Faults::NONE
    };
    survives(|profile, seed| Scenario::new(profile, 3_000, faults, seed));
}

#[test]
fn flipped_bits_in_heads() {
    let faults = Faults {
        corrupt: 0.02,
        ..Faults::NONE
    };
    let summary = survives(|profile, seed| Scenario::new(profile, 3_000, faults, seed));
    // The NIC's CRC sees what hits the payload; the frame's own must see what is left.
    assert!(summary.ports.crc_errors > 0 && summary.engine.rx_corrupt + summary.engine.rx_malformed > 0);
}

#[test]
fn flipped_bits_anywhere_with_a_payload_crc() {
    let faults = Faults {
        corrupt: 0.02,
        ..Faults::NONE
    };
    let summary = survives(|profile, seed| Scenario {
        payload_crc: true,
        ..Scenario::new(profile, 3_000, faults, seed)
    });
    assert!(summary.ports.crc_errors == 0 && summary.engine.rx_corrupt > 0);
}

#[test]
fn lost_interrupts_ignored_doorbells_and_stranded_completions() {
    let faults = Faults {
        lost_irq: 0.01,
        ignored_doorbell: 0.01,
        stranded: 0.01,
        ..Faults::NONE
    };
    survives(|profile, seed| Scenario::new(profile, 3_000, faults, seed));
}

#[test]
fn stalls_of_rings_and_cables() {
    let faults = Faults {
        link_stall: 0.002,
        tx_stall: 0.002,
        stall: 5 * MS,
        ..Faults::NONE
    };
    survives(|profile, seed| Scenario::new(profile, 3_000, faults, seed));
}

#[test]
fn copies_that_take_their_time() {
    let faults = Faults {
        plan_delay: 200 * US,
        loss: 0.01,
        ..Faults::NONE
    };
    survives(|profile, seed| Scenario::new(profile, 2_000, faults, seed));
}

#[test]
fn receivers_that_are_seldom_ready() {
    let faults = Faults {
        loss: 0.01,
        dup: 0.01,
        ..Faults::NONE
    };
    let summary = survives(|profile, seed| {
        let mix = Mix {
            receives: 4,
            receive_delay: 200 * US,
            ..Mix::everything(2_000)
        };
        Scenario {
            mix,
            ..Scenario::new(profile, 0, faults, seed)
        }
    });
    assert!(summary.engine.rnr_sent > 0);
}

#[test]
fn four_rails() {
    let faults = Faults {
        loss: 0.01,
        dup: 0.01,
        ..Faults::NONE
    };
    survives(|profile, seed| Scenario {
        rails: 4,
        ..Scenario::new(profile, 3_000, faults, seed)
    });
}

#[test]
fn three_hosts_in_a_triangle() {
    let faults = Faults {
        loss: 0.01,
        dup: 0.01,
        ..Faults::NONE
    };
    survives(|profile, seed| Scenario {
        hosts: 3,
        ..Scenario::new(profile, 3_000, faults, seed)
    });
}

#[test]
fn everything_at_once() {
    let faults = Faults {
        loss: 0.01,
        burst: 0.001,
        dup: 0.01,
        corrupt: 0.01,
        link_stall: 0.001,
        tx_stall: 0.001,
        ignored_doorbell: 0.01,
        lost_irq: 0.01,
        stranded: 0.01,
        plan_delay: 50 * US,
        control_loss: 0.2,
        control_dup: 0.2,
        ..Faults::NONE
    };
    survives(|profile, seed| Scenario::new(profile, 2_000, faults, seed));
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let faults = Faults {
        loss: 0.01,
        dup: 0.01,
        corrupt: 0.01,
        lost_irq: 0.01,
        ..Faults::NONE
    };
    let run = || Scenario::new(&Profile::MIXED, 2_000, faults, 9).run().unwrap();
    let (first, second) = (run(), run());
    assert_eq!(
        (first.totals, first.forward, first.backward, first.ports),
        (second.totals, second.forward, second.backward, second.ports)
    );
    assert_eq!(first.engine, second.engine);
}

#[test]
fn rings_of_sixty_four() {
    let faults = Faults {
        loss: 0.01,
        dup: 0.01,
        ..Faults::NONE
    };
    survives(|profile, seed| {
        let small = Profile {
            ring: 64,
            tx_depth: 32,
            ..profile.clone()
        };
        Scenario::new(&small, 2_000, faults, seed)
    });
}

#[test]
fn links_with_hardly_any_memory() {
    let faults = Faults {
        loss: 0.01,
        plan_delay: 100 * US,
        ..Faults::NONE
    };
    for seed in seeds(20) {
        let mut world = World::new(seed, &Profile::STRIX);
        world.set_limits(|config| {
            config.tx_slots = 24;
            config.max_parked = 64;
            config.max_plans = 16;
            config.max_reads = 2;
            config.max_ops = 64;
            config.max_ready = 2;
        });
        let hosts = [world.add_host(), world.add_host()];
        for _ in 0..2 {
            world.connect(hosts[0], hosts[1], faults);
        }
        world.bring_up().unwrap();
        let traffic = Traffic::new(&mut world, &hosts, &Mix::everything(1_000), seed).unwrap();
        if let Err(failure) = traffic.run(&mut world) {
            panic!("seed {seed}: {failure}");
        }
    }
}

#[test]
fn rails_that_come_and_go_while_another_stays() {
    for profile in &Profile::ALL {
        for seed in seeds(3) {
            let faults = Faults {
                loss: 0.005,
                ..Faults::NONE
            };
            let scenario = Scenario {
                rails: 3,
                ..Scenario::new(profile, 20_000, faults, seed)
            };
            let (mut world, hosts) = scenario.world().unwrap();
            world.set_timer(world.now() + MS, Traffic::DISTURB);
            let mut rng = Rng::new(seed);
            let mut away = None;
            let traffic = Traffic::new(&mut world, &hosts, &scenario.mix, seed).unwrap();
            traffic
                .run_disturbed(&mut world, |world, timer| {
                    // Cable 2 stays; of the others one at a time is out.
                    match away.take() {
                        Some(cable) => world.plug(cable),
                        None => {
                            let cable = rng.index(2);
                            world.unplug(cable);
                            away = Some(cable);
                        }
                    }
                    world.set_timer(world.now() + rng.below(20 * MS), timer);
                })
                .unwrap_or_else(|failure| panic!("{}, seed {seed}: {failure}", profile.name));
        }
    }
}

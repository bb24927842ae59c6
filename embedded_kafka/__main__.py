"""`python -m embedded_kafka [--brokers N]`: a Kafka in the foreground until Ctrl-C or SIGTERM."""

import argparse
import signal
from pathlib import Path

from embedded_kafka.kafka import KafkaCluster


def main() -> None:
    """Start, print the bootstrap addresses, wait for a signal, stop."""
    parser = argparse.ArgumentParser(prog="python -m embedded_kafka", description=__doc__)
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--host", default="127.0.0.1", help="a loopback address")
    parser.add_argument(
        "--data-dir", type=Path, help="keep the data here; default: a folder removed at the end"
    )
    parser.add_argument(
        "--property", action="append", default=[], metavar="KEY=VALUE", help="broker property"
    )
    arguments = parser.parse_args()
    properties = dict(text.split("=", 1) for text in arguments.property)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cluster = KafkaCluster(arguments.brokers, arguments.host, properties, arguments.data_dir)
    try:
        cluster.start()
        print(f"bootstrap: {cluster.bootstrap}", flush=True)
        print(f"logs:      {cluster.directory / 'logs'}", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        cluster.stop()


if __name__ == "__main__":
    main()

"""What a server on this machine spends while it is measured, and what everything else does meanwhile."""

import time

import psutil


class Meter:
    """Processor time between `start` and `stop` of the process that listens on a port, with its children."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._processes = _family(int(port)) if host in ("127.0.0.1", "localhost", "[::1]") else []

    def start(self) -> None:
        self._since = time.perf_counter()
        self._used = self._server_seconds()
        self._busy = _busy_seconds()
        self._own = _own_seconds()

    def stop(self) -> dict[str, float]:
        """Cores used by the server, this client and all others; nothing for a server elsewhere."""
        if not self._processes:
            return {}
        wall = time.perf_counter() - self._since
        server, own = self._server_seconds() - self._used, _own_seconds() - self._own
        others = max(0.0, _busy_seconds() - self._busy - server - own)
        return {"server_cores": server / wall, "client_cores": own / wall, "other_cores": others / wall}

    def pss_mb(self) -> float:
        """Proportional set size: shared pages are counted in parts."""
        return sum(process.memory_full_info().pss for process in self._processes) / 1e6

    def _server_seconds(self) -> float:
        times = [process.cpu_times() for process in self._processes]
        return float(sum(each.user + each.system for each in times))


def _family(port: int) -> list[psutil.Process]:
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            process = psutil.Process(connection.pid)
            return [process, *process.children(recursive=True)]
    return []


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def _own_seconds() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)

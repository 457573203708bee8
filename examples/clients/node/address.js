// The address at which workers of other nodes reach this machine.

import dgram from 'node:dgram';
import { once } from 'node:events';
import net from 'node:net';

// Addresses of documentation: they are routed like any other, and nothing is sent there.
const FAR_AWAY = ['192.0.2.1', '2001:db8::1'];

/**
 * Returns the source address towards the coordinator; if that is a loopback address, the one of the
 * default route, as the Python agent does. The nodes of a job have to agree.
 */
export async function findAddress(coordinator) {
  const [, host] = /^\[?(.*?)\]?:\d+$/.exec(coordinator);
  for (const target of [host, ...FAR_AWAY]) {
    const address = await findSource(target);
    if (address && address !== '::1' && !address.startsWith('127.')) return address;
  }
  return '127.0.0.1';
}

/** Returns the source address of this machine towards another one; null if there is no way. */
async function findSource(host) {
  const socket = dgram.createSocket(net.isIPv6(host) ? 'udp6' : 'udp4');
  try {
    socket.connect(9, host); // sends nothing: the kernel only looks up the route
    await once(socket, 'connect');
    return socket.address().address;
  } catch {
    return null;
  } finally {
    socket.close();
  }
}

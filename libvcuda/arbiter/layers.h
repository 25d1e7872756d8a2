/* The layers of the arbiter, lowest first; see shim/layers.h for the rules. Nothing includes this file.
 *
 * LAYER share     share                        how much of a GPU each claim gets
 * LAYER claims    reading claims processes     the claims of the node, their pages and processes
 * LAYER claims    memory                       who gives borrowed memory back
 * LAYER round     round accounts beside turn   the rounds of one GPU
 * LAYER gpu       gpu                          the thread of one GPU
 * LAYER main      main                         the program
 */
